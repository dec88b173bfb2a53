"""Quantized weights as the wide operand of the tensor cores, unpacked in registers; tokens as the other, from memory.

One pair of kernels serves all counts of tokens: tiles of 8 tokens where weights are what is waited for, up to 256
where arithmetic is. Weights never pass through shared memory unpacked.
"""

# Kernels are functions of tiles, for which Python has no types; their names are those of the formulas.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202, E741

from __future__ import annotations

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from moe_core.activation import Activation
from moe_plugins.triton_moe.activation import activate, activation_meta
from moe_plugins.triton_moe.expert_map import ExpertMap
from moe_plugins.triton_moe.fp8_weights import Fp8Rows
from moe_plugins.triton_moe.launch import launch
from moe_plugins.triton_moe.w4_weights import W4Weights
from moe_plugins.triton_moe.w4_words import INT8, code_words, dequantize, load_scales, scale_words

MOST_WEIGHT_ROWS: Final = 128
MOST_INT8: Final = 64 * 128
"""Products of a tile of eight-bit weights."""


class W4SwapConfig(NamedTuple):
    """Tiles of one of the two kernels."""

    rows: int = 8
    """Tokens of a tile: the map's `tile`."""
    weight_rows: int = 64
    """Of a program; where they are gated, half of them are gate's and half are up's."""
    stages: int = 4
    warps: int = 4
    group: int = 1
    """Token tiles that sweep the columns together, so that they find each other's weights in the cache."""
    short: int = 0
    """Tiles of at most as many tokens are computed at this height; 0: all at the full one."""
    unroll: int = 1
    """Blocks of 128 columns of a step; stages are of as many."""

    @property
    def gathers(self) -> bool:
        """Tokens are gathered as they are read."""
        return True


def up(
    x_TH: torch.Tensor | Fp8Rows,
    found: ExpertMap,
    weights: W4Weights,
    activation: Activation,
    top_k: int,
    h_RI: torch.Tensor,
    config: W4SwapConfig,
    *,
    pdl: bool = False,
) -> None:
    """FC1 and the activation of every row of the map, into `h_RI`. H and I multiples of 8, or of 16 where tokens are
    e4m3 with a scale each."""
    _, hidden, inter = weights.sizes
    columns = config.weight_rows // (2 if weights.gated else 1)
    launch(
        _up, (found.max_tiles * triton.cdiv(inter, columns),),
        (
            *_rows(x_TH), *weights.fc1, weights.b1, h_RI, found.pair_of_row, found.tile_expert, found.tile_row,
            found.tile_rows, found.num_tiles, found.max_tiles,
        ),
        {
            "H": hidden, "I": inter, "K": top_k, **_meta(config, weights), "GATED": weights.gated, "PDL": pdl,
            **activation_meta(activation),
        },
        num_warps=config.warps, num_stages=config.stages, pdl=pdl,
    )  # fmt: skip


def down(
    h_RI: torch.Tensor | Fp8Rows,
    found: ExpertMap,
    weights: W4Weights,
    y_RH: torch.Tensor,
    config: W4SwapConfig,
    *,
    pdl: bool = False,
) -> None:
    """FC2 of every row of the map, into `y_RH`; not weighed. Sizes as for :func:`up`."""
    _, hidden, inter = weights.sizes
    launch(
        _down, (found.max_tiles * triton.cdiv(hidden, config.weight_rows),),
        (
            *_rows(h_RI), *weights.w2, weights.b2, y_RH, found.tile_expert, found.tile_row, found.tile_rows,
            found.num_tiles, found.max_tiles,
        ),
        {"H": hidden, "I": inter, **_meta(config, weights), "PDL": pdl},
        num_warps=config.warps, num_stages=config.stages, pdl=pdl,
    )  # fmt: skip


def _rows(x: torch.Tensor | Fp8Rows) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rows and their scales."""
    if not isinstance(x, Fp8Rows):
        return x, None
    if x.group or x.static:
        raise ValueError(f"found rows with scales of {x.group or 'all'} columns, needed one scale for each row")
    return x.data, x.scales


def _meta(config: W4SwapConfig, weights: W4Weights) -> dict[str, object]:
    _check(config, weights.format.kind)
    return {
        "T": config.rows, "SHORT": config.short, "N": config.weight_rows, "STAGES": config.stages,
        "UNROLL": config.unroll, "RASTER": config.group, **weights.format.meta(),
    }  # fmt: skip


@triton.jit
def _raster(t, tiles, COLUMN_TILES: tl.constexpr, RASTER: tl.constexpr):
    """Token tile and column tile in the `t`-th place."""
    first = t // (RASTER * COLUMN_TILES) * RASTER
    height = tl.minimum(tiles - first, RASTER)
    within = t % (RASTER * COLUMN_TILES)
    return first + within % height, within // height


@triton.jit
def product(
    words, scales, row_scale, x, e, n_N, is_row_N, at_T, is_token_T,
    ROWS: tl.constexpr, K: tl.constexpr, N: tl.constexpr, T: tl.constexpr, ALL: tl.constexpr, STAGES: tl.constexpr,
    UNROLL: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Weight rows `n_N`, of `ROWS`, times the rows of `x` at `at_T`: ``[N, T]``.

    `e` is their expert, or each row's. `ALL`: no row is masked.
    """
    TYPE: tl.constexpr = x.dtype.element_ty
    WORDS: tl.constexpr = code_words(FORMAT)
    SCALES: tl.constexpr = scale_words(FORMAT, GROUP)
    BLOCKS: tl.constexpr = (K + 127) // 128
    c, kk = tl.arange(0, WORDS), tl.arange(0, 128)
    e = e.to(tl.int64)
    at_words = words + (e * (BLOCKS * ROWS * WORDS) + n_N * WORDS)[:, None] + c[None, :]
    at_scales = scales + e * (BLOCKS * SCALES * ROWS) + n_N
    at_x = x + at_T[None, :] + kk[:, None]
    acc = tl.zeros([N, T], tl.float32)
    for b in tl.range(0, BLOCKS, num_stages=STAGES, loop_unroll_factor=UNROLL):
        if ALL:
            q = tl.load(at_words + b * (ROWS * WORDS), eviction_policy="evict_first")
        else:
            q = tl.load(at_words + b * (ROWS * WORDS), mask=is_row_N[:, None], other=0, eviction_policy="evict_first")
        s = load_scales(at_scales + b * (SCALES * ROWS), ROWS, is_row_N, FORMAT, GROUP, ALL)
        if K % 128 == 0:
            tokens = tl.load(at_x + b * 128, mask=is_token_T[None, :], other=0.0)
        else:
            tokens = tl.load(at_x + b * 128, mask=is_token_T[None, :] & (b * 128 + kk < K)[:, None], other=0.0)
        acc = tl.dot(dequantize(q, s, N, FORMAT, GROUP, TYPE, PLAIN), tokens, acc)
    factor = tl.load(row_scale + e * ROWS + n_N, mask=is_row_N, other=0.0)
    return acc * factor[:, None]


@triton.jit
def stacked_rows(n0, N: tl.constexpr, I: tl.constexpr, GATED: tl.constexpr):
    """Rows of FC1 of a tile, and which exist: 8 of gate, the same 8 of up, the next 8 … A thread of the tensor cores
    has both of a pair."""
    r = tl.arange(0, N)
    if GATED:
        n = n0 + r // 16 * 8 + r % 8
        is_row = n < I
        n += r // 8 % 2 * I
    else:
        n = n0 + r
        is_row = n < I
    return n, is_row


@triton.jit
def split_rows(acc, N: tl.constexpr, T: tl.constexpr):
    """Gate and up ``[N / 2, T]`` of a product of stacked rows."""
    pairs = tl.permute(tl.reshape(acc, [N // 16, 2, 8, T]), [0, 2, 3, 1])
    gate, up = tl.split(pairs)
    return tl.reshape(gate, [N // 2, T]), tl.reshape(up, [N // 2, T])


@triton.jit
def activated(
    acc, b1, e, n, is_row, n0,
    I: tl.constexpr, N: tl.constexpr, T: tl.constexpr, GATED: tl.constexpr, KIND: tl.constexpr, ALPHA: tl.constexpr,
    BETA: tl.constexpr, CLAMP: tl.constexpr, AFTER: tl.constexpr,
):  # fmt: skip
    """The activation ``[columns, T]`` of a product of stacked rows `n`, and which columns those are."""
    G: tl.constexpr = 2 * I if GATED else I
    if b1 is not None:
        acc += tl.load(b1 + e * G + n, mask=is_row, other=0.0).to(tl.float32)[:, None]
    if GATED:
        gate, up_ = split_rows(acc, N, T)
    else:
        gate, up_ = acc, acc
    out = activate(gate, up_, KIND, ALPHA, BETA, CLAMP, AFTER)
    return out, n0 + tl.arange(0, N // 2 if GATED else N)


@triton.jit
def _scaled(acc, scales, row, is_row):
    """The product ``[N, T]`` of tokens in units of `scales`, where they have any."""
    if scales is not None:
        acc *= tl.load(scales + row, mask=is_row, other=0.0)[None, :]
    return acc


@triton.jit
def _up_tile(
    x, x_scales, words, scales, row_scale, b1, h, pair_of_row, e, row0, rows, n0,
    H: tl.constexpr, I: tl.constexpr, K: tl.constexpr, T: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
    UNROLL: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr, PLAIN: tl.constexpr, GATED: tl.constexpr,
    KIND: tl.constexpr, ALPHA: tl.constexpr, BETA: tl.constexpr, CLAMP: tl.constexpr, AFTER: tl.constexpr,
):  # fmt: skip
    t = tl.arange(0, T)
    is_token = t < rows
    token = tl.load(pair_of_row + row0 + t, mask=is_token, other=0) // K
    n, is_row = stacked_rows(n0, N, I, GATED)
    acc = product(
        words, scales, row_scale, x, e, n, is_row, token.to(tl.int64) * H, is_token,
        2 * I if GATED else I, H, N, T, I % (N // 2 if GATED else N) == 0, STAGES, UNROLL, FORMAT, GROUP, PLAIN,
    )  # fmt: skip
    acc = _scaled(acc, x_scales, token, is_token)
    out, column = activated(acc, b1, e, n, is_row, n0, I, N, T, GATED, KIND, ALPHA, BETA, CLAMP, AFTER)
    at = h + (row0 + t).to(tl.int64)[:, None] * I + column[None, :]
    tl.store(at, out.to(h.dtype.element_ty).T, mask=is_token[:, None] & (column < I)[None, :])


@triton.jit(do_not_specialize=["max_tiles"])
def _up(
    x, x_scales, words, scales, row_scale, b1, h, pair_of_row, tile_expert, tile_row, tile_rows, num_tiles, max_tiles,
    H: tl.constexpr, I: tl.constexpr, K: tl.constexpr, T: tl.constexpr, SHORT: tl.constexpr, N: tl.constexpr,
    STAGES: tl.constexpr, UNROLL: tl.constexpr, RASTER: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr,
    PLAIN: tl.constexpr, GATED: tl.constexpr, PDL: tl.constexpr,
    KIND: tl.constexpr, ALPHA: tl.constexpr, BETA: tl.constexpr, CLAMP: tl.constexpr, AFTER: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    COLUMNS: tl.constexpr = N // 2 if GATED else N
    tile, column = _raster(tl.program_id(0), max_tiles, (I + COLUMNS - 1) // COLUMNS, RASTER)
    # Read before it is known whether they are there, so that all of them arrive at once.
    e, row, rows = tl.load(tile_expert + tile), tl.load(tile_row + tile), tl.load(tile_rows + tile)
    if tile >= tl.load(num_tiles):
        return
    if rows > SHORT:
        _up_tile(
            x, x_scales, words, scales, row_scale, b1, h, pair_of_row, e, row, rows, column * COLUMNS,
            H, I, K, T, N, STAGES, UNROLL, FORMAT, GROUP, PLAIN, GATED, KIND, ALPHA, BETA, CLAMP, AFTER,
        )  # fmt: skip
    elif SHORT > 0:
        _up_tile(
            x, x_scales, words, scales, row_scale, b1, h, pair_of_row, e, row, rows, column * COLUMNS,
            H, I, K, SHORT, N, STAGES, UNROLL, FORMAT, GROUP, PLAIN, GATED, KIND, ALPHA, BETA, CLAMP, AFTER,
        )  # fmt: skip


@triton.jit
def _down_tile(
    h, h_scales, words, scales, row_scale, b2, y, e, row0, rows, n0,
    H: tl.constexpr, I: tl.constexpr, T: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr, UNROLL: tl.constexpr,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    t = tl.arange(0, T)
    is_token = t < rows
    row = (row0 + t).to(tl.int64)
    n = n0 + tl.arange(0, N)
    is_row = n < H
    acc = product(
        words, scales, row_scale, h, e, n, is_row, row * I, is_token, H, I, N, T, H % N == 0, STAGES, UNROLL, FORMAT,
        GROUP, PLAIN,
    )  # fmt: skip
    acc = _scaled(acc, h_scales, row, is_token)
    if b2 is not None:
        acc += tl.load(b2 + e * H + n, mask=is_row, other=0.0).to(tl.float32)[:, None]
    at = y + row[:, None] * H + n[None, :]
    tl.store(at, acc.to(y.dtype.element_ty).T, mask=is_token[:, None] & is_row[None, :])


@triton.jit(do_not_specialize=["max_tiles"])
def _down(
    h, h_scales, words, scales, row_scale, b2, y, tile_expert, tile_row, tile_rows, num_tiles, max_tiles,
    H: tl.constexpr, I: tl.constexpr, T: tl.constexpr, SHORT: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
    UNROLL: tl.constexpr, RASTER: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr, PLAIN: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    tile, column = _raster(tl.program_id(0), max_tiles, (H + N - 1) // N, RASTER)
    # Read before it is known whether they are there, so that all of them arrive at once.
    e, row, rows = tl.load(tile_expert + tile), tl.load(tile_row + tile), tl.load(tile_rows + tile)
    if tile >= tl.load(num_tiles):
        return
    if rows > SHORT:
        _down_tile(
            h, h_scales, words, scales, row_scale, b2, y, e, row, rows, column * N,
            H, I, T, N, STAGES, UNROLL, FORMAT, GROUP, PLAIN,
        )  # fmt: skip
    elif SHORT > 0:
        _down_tile(
            h, h_scales, words, scales, row_scale, b2, y, e, row, rows, column * N,
            H, I, SHORT, N, STAGES, UNROLL, FORMAT, GROUP, PLAIN,
        )  # fmt: skip


def _check(config: W4SwapConfig, kind: str) -> None:
    # Both seen on an H200 with Triton 3.6: results that differ from run to run.
    if config.weight_rows > MOST_WEIGHT_ROWS:
        raise ValueError(f"asked for {config}; {MOST_WEIGHT_ROWS} weight rows are the most")
    if kind == INT8 and config.weight_rows * config.rows > MOST_INT8:
        raise ValueError(f"asked for {config}; of {kind}, weight_rows * rows is {MOST_INT8} at most")
