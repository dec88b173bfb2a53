"""Few rows per expert in fp8: tiles of weights are the wide operand of the tensor cores, tokens the narrow one.

Tokens come quantized. What the activation gives is quantized where it is made, by as many columns as a program has.
"""

# Kernels are functions of tiles, for which Python has no types; their names are those of the formulas.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ANN001, ANN202, E741

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from moe_core.activation import Activation
from moe_plugins.triton_moe.activation import activate, activation_meta
from moe_plugins.triton_moe.expert_map import ExpertMap
from moe_plugins.triton_moe.fp8_blocks import column_at, row_at
from moe_plugins.triton_moe.fp8_scales import row_scales, row_scales_of, store_codes, weight_scale
from moe_plugins.triton_moe.fp8_weights import Fp8Rows, Fp8Weights, check_steps
from moe_plugins.triton_moe.launch import launch
from moe_plugins.triton_moe.swap_ab import token_tile


class Fp8SwapConfig(NamedTuple):
    """Tiles of one of the two kernels."""

    rows: int = 16
    """Tokens of a tile: the map's `tile`."""
    columns: int = 64
    """Weight rows of a program; gate and up rows of each."""
    block: int = 128
    """Of the inner dimension, per step: a divisor of 128."""
    stages: int = 3
    warps: int = 4
    unroll: int = 1
    """Steps of a round of the loop: with two, scales of the next step need not have arrived at its end, to be moved."""

    @property
    def gathers(self) -> bool:
        """Tokens are gathered as they are read."""
        return True

    @property
    def scaled(self) -> int:
        """Columns of h that `up` gives one scale."""
        return self.columns


def up(
    x: Fp8Rows,
    found: ExpertMap,
    weights: Fp8Weights,
    activation: Activation,
    top_k: int,
    h: Fp8Rows,
    config: Fp8SwapConfig,
    *,
    pdl: bool = False,
) -> None:
    """FC1 and the activation of every row of the map, of the tokens `x`, into `h`, which is static or in groups of
    ``config.columns``, a divisor of 128; ``config.block`` divides the groups of `x`."""
    _, hidden, inter = weights.sizes
    check_steps(x, config.block)
    if not h.static and h.group != config.columns:
        raise ValueError(f"asked for {config.columns} columns; found h in groups of {h.group}, needed the same")
    launch(
        _up, (found.max_tiles * triton.cdiv(inter, config.columns),),
        (
            x.data, x.scales, weights.fc1, weights.s1, weights.r1, weights.b1_EG, h.data, h.scales,
            found.pair_of_row, found.tile_expert, found.tile_row, found.tile_rows, found.num_tiles,
            len(x.data), len(h.data),
        ),
        {
            "H": hidden, "I": inter, "K": top_k, "T": config.rows, "N": config.columns, "BLOCK": config.block,
            "STAGES": config.stages, "UNROLL": config.unroll, "HALVES": weights.halves, "BLOCKS": weights.blocks,
            **x.meta, "H_STATIC": h.static, "PDL": pdl, **activation_meta(activation),
        },
        num_warps=config.warps, num_stages=config.stages, pdl=pdl,
    )  # fmt: skip


def down(
    h: Fp8Rows,
    found: ExpertMap,
    weights: Fp8Weights,
    y_RH: torch.Tensor,
    config: Fp8SwapConfig,
    *,
    pdl: bool = False,
) -> None:
    """FC2 of every row of the map, into `y_RH`; not weighed. ``config.block`` divides the groups of `h`, and
    ``config.columns`` 128."""
    _, hidden, inter = weights.sizes
    check_steps(h, config.block)
    launch(
        _down, (found.max_tiles * triton.cdiv(hidden, config.columns),),
        (
            h.data, h.scales, weights.w2, weights.s2, weights.r2, weights.b2_EH, y_RH,
            found.tile_expert, found.tile_row, found.tile_rows, found.num_tiles, len(h.data),
        ),
        {
            "H": hidden, "I": inter, "T": config.rows, "N": config.columns, "BLOCK": config.block,
            "STAGES": config.stages, "UNROLL": config.unroll, "BLOCKS": weights.blocks, **h.meta, "PDL": pdl,
        },
        num_warps=config.warps, num_stages=config.stages, pdl=pdl,
    )  # fmt: skip


@triton.jit
def _weight_tile(w, at_N, is_row_N, k, ROWS: tl.constexpr, BLOCK: tl.constexpr, ALL_ROWS: tl.constexpr):
    """Tile ``[N, BLOCK]`` of weight rows, of `ROWS`, that begin at `at_N`, from column `k` on; zero past the last."""
    kk = column_at(k, ROWS) + tl.arange(0, BLOCK)
    pointers = w + at_N[:, None] + kk[None, :]
    if ALL_ROWS:
        tile = tl.load(pointers, eviction_policy="evict_first")
    else:
        tile = tl.load(pointers, mask=is_row_N[:, None], other=0.0, eviction_policy="evict_first")
    return tile


@triton.jit
def _apart(tile, N: tl.constexpr, T: tl.constexpr):
    """Upper and lower half of a tile ``[2 * N, T]``: mere registers where N is 16 times the warps."""
    return tl.split(tl.permute(tl.reshape(tile, [2, N, T]), [1, 2, 0]))


@triton.jit(do_not_specialize=["num_tokens", "max_rows"])
def _up(
    x, x_scales, fc1, s1, r1, b1, h, h_scales, pair_of_row, tile_expert, tile_row, tile_rows, num_tiles,
    num_tokens, max_rows,
    H: tl.constexpr, I: tl.constexpr, K: tl.constexpr, T: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr, UNROLL: tl.constexpr, HALVES: tl.constexpr, BLOCKS: tl.constexpr, SCALED: tl.constexpr,
    STATIC: tl.constexpr, H_STATIC: tl.constexpr, PDL: tl.constexpr,
    KIND: tl.constexpr, ALPHA: tl.constexpr, BETA: tl.constexpr, CLAMP: tl.constexpr, AFTER: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    # Tile by tile: a second tile of an expert finds its weights in L2.
    NUM_COLUMNS: tl.constexpr = (I + N - 1) // N
    tile = tl.program_id(0) // NUM_COLUMNS
    if tile < tl.load(num_tiles):
        e = tl.load(tile_expert + tile)
        t = tl.arange(0, T)
        is_token = t < tl.load(tile_rows + tile)
        row = tl.load(tile_row + tile) + t
        token = tl.load(pair_of_row + row, mask=is_token, other=0) // K
        at_x = token.to(tl.int64) * H
        n0 = tl.program_id(0) % NUM_COLUMNS * N
        # Rows of gate, then the same of up: one operand.
        m = tl.arange(0, HALVES * N)
        is_row = n0 + m % N < I
        at = row_at(e, m // N * I + n0 + m % N, HALVES * I, H)
        acc = tl.zeros([HALVES * N, T], tl.float32)
        gate, up_ = tl.zeros([N, T], tl.float32), tl.zeros([N, T], tl.float32)
        x_scale = row_scales(x_scales, token, is_token, 0, num_tokens, H, SCALED, STATIC)
        gate_scale = weight_scale(s1, e * HALVES, n0, 0, I, H, BLOCKS)
        up_scale = weight_scale(s1, e * HALVES + HALVES - 1, n0, 0, I, H, BLOCKS)
        for k in tl.range(0, H, BLOCK, num_stages=STAGES, loop_unroll_factor=UNROLL):
            tokens = token_tile(x, at_x, is_token, k, H, BLOCK)
            w = _weight_tile(fc1, at, is_row, k, HALVES * I, BLOCK, I % N == 0)
            if BLOCKS or SCALED > 0:
                # Those of the next step are asked for now.
                next_x = row_scales(x_scales, token, is_token, k + BLOCK, num_tokens, H, SCALED, STATIC)
                next_gate = weight_scale(s1, e * HALVES, n0, k + BLOCK, I, H, BLOCKS)
                next_up = weight_scale(s1, e * HALVES + HALVES - 1, n0, k + BLOCK, I, H, BLOCKS)
                part = tl.dot(w, tokens)
                if HALVES == 2:
                    gate_part, up_part = _apart(part, N, T)
                    gate += gate_part * (x_scale * gate_scale)[None, :]
                    up_ += up_part * (x_scale * up_scale)[None, :]
                else:
                    gate += part * (x_scale * gate_scale)[None, :]
                x_scale, gate_scale, up_scale = next_x, next_gate, next_up
            else:
                acc = tl.dot(w, tokens, acc)
        if not (BLOCKS or SCALED > 0):
            if HALVES == 2:
                gate, up_ = _apart(acc, N, T)
                up_ *= (x_scale * up_scale)[None, :]
            else:
                gate = acc
            gate *= (x_scale * gate_scale)[None, :]
        if r1 is not None:
            n = n0 + tl.arange(0, N)
            gate *= tl.load(r1 + e * (HALVES * I) + n, mask=n < I, other=0.0)[:, None]
            if HALVES == 2:
                up_ *= tl.load(r1 + e * (HALVES * I) + I + n, mask=n < I, other=0.0)[:, None]
        if b1 is not None:
            n = n0 + tl.arange(0, N)
            gate += tl.load(b1 + e * (HALVES * I) + n, mask=n < I, other=0.0).to(tl.float32)[:, None]
            if HALVES == 2:
                up_ += tl.load(b1 + e * (HALVES * I) + I + n, mask=n < I, other=0.0).to(tl.float32)[:, None]
        out = activate(gate, up_, KIND, ALPHA, BETA, CLAMP, AFTER).T
        scale = row_scales_of(out, h_scales, H_STATIC)
        if not H_STATIC:
            tl.store(h_scales + n0 // N * max_rows + row, scale, mask=is_token)
        store_codes(h, out, scale, row, is_token, n0, I)


@triton.jit(do_not_specialize=["max_rows"])
def _down(
    h, h_scales, w2, s2, r2, b2, y, tile_expert, tile_row, tile_rows, num_tiles, max_rows,
    H: tl.constexpr, I: tl.constexpr, T: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
    UNROLL: tl.constexpr, BLOCKS: tl.constexpr, SCALED: tl.constexpr, STATIC: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    NUM_COLUMNS: tl.constexpr = (H + N - 1) // N
    tile = tl.program_id(0) // NUM_COLUMNS
    if tile < tl.load(num_tiles):
        e = tl.load(tile_expert + tile)
        t = tl.arange(0, T)
        is_token = t < tl.load(tile_rows + tile)
        row = tl.load(tile_row + tile) + t
        at_h = row.to(tl.int64) * I
        n0 = tl.program_id(0) % NUM_COLUMNS * N
        n = n0 + tl.arange(0, N)
        is_row = n < H
        at = row_at(e, n, H, I)
        acc = tl.zeros([N, T], tl.float32)
        h_scale = row_scales(h_scales, row, is_token, 0, max_rows, I, SCALED, STATIC)
        w_scale = weight_scale(s2, e, n0, 0, H, I, BLOCKS)
        for k in tl.range(0, I, BLOCK, num_stages=STAGES, loop_unroll_factor=UNROLL):
            tokens = token_tile(h, at_h, is_token, k, I, BLOCK)
            w = _weight_tile(w2, at, is_row, k, H, BLOCK, H % N == 0)
            if BLOCKS or SCALED > 0:
                next_h = row_scales(h_scales, row, is_token, k + BLOCK, max_rows, I, SCALED, STATIC)
                next_w = weight_scale(s2, e, n0, k + BLOCK, H, I, BLOCKS)
                acc += tl.dot(w, tokens) * (h_scale * w_scale)[None, :]
                h_scale, w_scale = next_h, next_w
            else:
                acc = tl.dot(w, tokens, acc)
        if not (BLOCKS or SCALED > 0):
            acc *= (h_scale * w_scale)[None, :]
        if r2 is not None:
            acc *= tl.load(r2 + e * H + n, mask=is_row, other=0.0)[:, None]
        if b2 is not None:
            acc += tl.load(b2 + e * H + n, mask=is_row, other=0.0).to(tl.float32)[:, None]
        out = acc.to(y.dtype.element_ty).T
        tl.store(y + row.to(tl.int64)[:, None] * H + n[None, :], out, mask=is_token[:, None] & is_row[None, :])
