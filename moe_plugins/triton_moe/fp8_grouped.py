"""Many rows per expert in fp8: tensor-core tiles over the rows in the order of an expert map.

Where scales change along the inner dimension, each step's product is promoted to float32 sums. That work hides behind
the tensor cores when several small programs share a multiprocessor: tiles of 64 rows, three programs. Without such
scales the tensor cores sum by themselves, and large tiles are best.
"""

# Kernels are functions of tiles, for which Python has no types; their names are those of the formulas.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ANN001, ANN202, E741

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from moe_core.activation import Activation
from moe_plugins.triton_moe.activation import activate, activation_meta
from moe_plugins.triton_moe.expert_map import ExpertMap
from moe_plugins.triton_moe.fp8_blocks import block_of
from moe_plugins.triton_moe.fp8_scales import row_scales, row_scales_of, store_codes, weight_scale
from moe_plugins.triton_moe.fp8_weights import BLOCK, Fp8Rows, Fp8Weights, check_steps
from moe_plugins.triton_moe.grouped import halves, raster, read, store
from moe_plugins.triton_moe.launch import launch


class Fp8GroupedConfig(NamedTuple):
    """How one of the two kernels is cut into tiles, one per program."""

    rows: int = 64
    """Of a tile: the map's `tile`."""
    align: int = 64
    """The map's `align`."""
    columns: int = 64
    """Output columns of a tile, a divisor of 128; where they are gated, twice as many weight rows."""
    block: int = 128
    """Of the inner dimension, per stage: a divisor of 128."""
    warps: int = 4
    stages: int = 3
    group: int = 8
    """Row tiles that sweep the columns together, so that they find each other's weights in the cache."""
    passes: int = 1
    """Of `up`: 2 makes twice the columns, one half after the other, so that their scales span both."""
    gathers: bool = True
    """Of `up`: tokens are gathered as they are read; otherwise they lie in rows of the map already."""

    @property
    def scaled(self) -> int:
        """Columns of h that `up` gives one scale."""
        return self.columns * self.passes


def up(
    x: Fp8Rows,
    found: ExpertMap,
    weights: Fp8Weights,
    activation: Activation,
    top_k: int,
    h: Fp8Rows,
    config: Fp8GroupedConfig,
    *,
    pdl: bool = False,
) -> None:
    """FC1 and the activation of every row of the map into `h`, which is static or in groups of ``config.scaled``.

    `x` are tokens where `config` gathers, otherwise :func:`~moe_plugins.triton_moe.quant_rows.quantize_pairs` of them;
    ``config.block`` divides its groups. Rows of `h` that are no pairs are undefined.
    """
    _, hidden, inter = weights.sizes
    check_steps(x, config.block)
    if not h.static and h.group != config.scaled:
        raise ValueError(f"asked for {config}; found h in groups of {h.group}, needed {config.scaled}")
    # Gate and up apart: one box holds the same columns of both, and ends where each of them ends.
    fc1 = TensorDescriptor.from_tensor(
        weights.fc1.view(-1, inter, BLOCK), [weights.halves, config.columns, config.block]
    )
    x_data = x.data if config.gathers else TensorDescriptor.from_tensor(x.data, [config.rows, config.block])
    _launch(
        _up,
        (
            x_data, x.scales, fc1, weights.s1, weights.r1, weights.b1_EG, h.data, h.scales,
            found.pair_of_row, len(x.data), len(h.data),
        ),
        found, config, config.scaled, inter, pdl,
        {
            "H": hidden, "I": inter, "K": top_k, "HALVES": weights.halves, "BLOCKS": weights.blocks, **x.meta,
            "H_STATIC": h.static, "PASSES": config.passes, "GATHERS": config.gathers, **activation_meta(activation),
        },
    )  # fmt: skip


def down(
    h: Fp8Rows,
    found: ExpertMap,
    weights: Fp8Weights,
    y_RH: torch.Tensor,
    config: Fp8GroupedConfig,
    *,
    pdl: bool = False,
) -> None:
    """FC2 of every row of the map, into `y_RH`; not weighed. ``config.block`` divides the groups of `h`."""
    _, hidden, inter = weights.sizes
    check_steps(h, config.block)
    w2 = TensorDescriptor.from_tensor(weights.w2.flatten(0, 1), [1, config.columns, config.block])
    h_box = TensorDescriptor.from_tensor(h.data, [config.rows, config.block])
    _launch(
        _down, (h_box, h.scales, w2, weights.s2, weights.r2, weights.b2_EH, y_RH, len(h.data)),
        found, config, config.columns, hidden, pdl,
        {"H": hidden, "I": inter, "BLOCKS": weights.blocks, **h.meta},
    )  # fmt: skip


def _launch(
    kernel: Any,
    operands: tuple[Any, ...],
    found: ExpertMap,
    config: Fp8GroupedConfig,
    columns: int,
    width: int,
    pdl: bool,
    meta: dict[str, Any],
) -> None:
    cut = {
        "BM": config.rows, "BN": config.columns, "BK": config.block, "STAGES": config.stages, "GROUP": config.group,
    }  # fmt: skip
    launch(
        kernel, (found.max_tiles * triton.cdiv(width, columns),),
        (*operands, found.tile_expert, found.tile_row, found.tile_rows, found.num_tiles, found.max_tiles),
        {**meta, **cut, "PDL": pdl},
        num_warps=config.warps, num_stages=config.stages, pdl=pdl,
    )  # fmt: skip


@triton.jit
def _neurons(
    x, x_scales, fc1, s1, r1, bias, first, token, here, e, n0, num_tokens,
    H: tl.constexpr, I: tl.constexpr, HALVES: tl.constexpr, BLOCKS: tl.constexpr, SCALED: tl.constexpr,
    STATIC: tl.constexpr, KIND: tl.constexpr, ALPHA: tl.constexpr, BETA: tl.constexpr, CLAMP: tl.constexpr,
    AFTER: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
    GATHERS: tl.constexpr,
):  # fmt: skip
    """The activation of rows `token` in neurons from `n0` on, float32 ``[BM, BN]``; zero past the last neuron.

    Unless `GATHERS`, rows are `first` and those after it."""
    k = tl.arange(0, BK)
    if GATHERS:
        x_at = x + token.to(tl.int64)[:, None] * H + k[None, :]
    x_scale = row_scales(x_scales, token, here, 0, num_tokens, H, SCALED, STATIC)
    gate_scale = weight_scale(s1, e * HALVES, n0, 0, I, H, BLOCKS)
    up_scale = weight_scale(s1, e * HALVES + HALVES - 1, n0, 0, I, H, BLOCKS)
    if BLOCKS or SCALED > 0:
        gate, up = tl.zeros([BM, BN], tl.float32), tl.zeros([BM, BN], tl.float32)
    else:
        acc = tl.zeros([BM, HALVES * BN], tl.float32)
    for k0 in tl.range(0, H, BK, num_stages=STAGES):
        if not GATHERS:
            a = x.load([first, k0])
        elif H % BK == 0:
            a = tl.load(x_at + k0, mask=here[:, None], other=0.0)
        else:
            a = tl.load(x_at + k0, mask=here[:, None] & (k0 + k < H)[None, :], other=0.0)
        w = tl.reshape(fc1.load([block_of(e, k0, H) * HALVES, n0, k0 % 128]), [HALVES * BN, BK])
        if BLOCKS or SCALED > 0:
            # Those of the next step are asked for now.
            next_x = row_scales(x_scales, token, here, k0 + BK, num_tokens, H, SCALED, STATIC)
            next_gate = weight_scale(s1, e * HALVES, n0, k0 + BK, I, H, BLOCKS)
            next_up = weight_scale(s1, e * HALVES + HALVES - 1, n0, k0 + BK, I, H, BLOCKS)
            part = tl.dot(a, w.T)
            if HALVES == 2:
                gate_part, up_part = halves(part, BM, BN)
                gate += gate_part * (x_scale * gate_scale)[:, None]
                up += up_part * (x_scale * up_scale)[:, None]
            else:
                gate += part * (x_scale * gate_scale)[:, None]
            x_scale, gate_scale, up_scale = next_x, next_gate, next_up
        else:
            acc = tl.dot(a, w.T, acc)
    if not (BLOCKS or SCALED > 0):
        if HALVES == 2:
            gate, up = halves(acc, BM, BN)
            up *= (x_scale * up_scale)[:, None]
        else:
            gate, up = acc, acc
        gate *= (x_scale * gate_scale)[:, None]
    if r1 is not None:
        n = n0 + tl.arange(0, BN)
        at = r1 + e * (HALVES * I) + n
        gate *= tl.load(at, mask=n < I, other=0.0)[None, :]
        if HALVES == 2:
            up *= tl.load(at + I, mask=n < I, other=0.0)[None, :]
    if bias is not None:
        n = n0 + tl.arange(0, BN)
        at = bias + e * (HALVES * I) + n
        gate += tl.load(at, mask=n < I, other=0.0).to(tl.float32)[None, :]
        if HALVES == 2:
            up += tl.load(at + I, mask=n < I, other=0.0).to(tl.float32)[None, :]
    return activate(gate, up, KIND, ALPHA, BETA, CLAMP, AFTER)


@triton.jit(do_not_specialize=["num_tokens", "max_rows", "max_tiles"])
def _up(
    x, x_scales, fc1, s1, r1, bias, h, h_scales, pair_of_row, num_tokens, max_rows,
    tile_expert, tile_row, tile_rows, num_tiles, max_tiles,
    H: tl.constexpr, I: tl.constexpr, K: tl.constexpr, HALVES: tl.constexpr, BLOCKS: tl.constexpr,
    SCALED: tl.constexpr, STATIC: tl.constexpr, H_STATIC: tl.constexpr, PASSES: tl.constexpr, GATHERS: tl.constexpr,
    KIND: tl.constexpr, ALPHA: tl.constexpr, BETA: tl.constexpr, CLAMP: tl.constexpr, AFTER: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, GROUP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    COLUMN_TILES: tl.constexpr = (I + PASSES * BN - 1) // (PASSES * BN)
    tiles = tl.load(num_tiles)
    # The place hangs on no number that is still under way, so all of them arrive at once.
    m, c = raster(tl.program_id(0), max_tiles, COLUMN_TILES, GROUP)
    e, first, rows = read(m, tile_expert, tile_row, tile_rows)
    if m >= tiles:
        return
    n0 = c * (PASSES * BN)
    row = first + tl.arange(0, BM)
    here = tl.arange(0, BM) < rows
    token = tl.load(pair_of_row + row, mask=here, other=0) // K if GATHERS else row
    tile = _neurons(
        x, x_scales, fc1, s1, r1, bias, first, token, here, e, n0, num_tokens,
        H, I, HALVES, BLOCKS, SCALED, STATIC, KIND, ALPHA, BETA, CLAMP, AFTER, BM, BN, BK, STAGES, GATHERS,
    )  # fmt: skip
    scale = row_scales_of(tile, h_scales, H_STATIC)
    if PASSES == 2:
        right = _neurons(
            x, x_scales, fc1, s1, r1, bias, first, token, here, e, n0 + BN, num_tokens,
            H, I, HALVES, BLOCKS, SCALED, STATIC, KIND, ALPHA, BETA, CLAMP, AFTER, BM, BN, BK, STAGES, GATHERS,
        )  # fmt: skip
        scale = tl.maximum(scale, row_scales_of(right, h_scales, H_STATIC))
        store_codes(h, right, scale, row, here, n0 + BN, I)
    store_codes(h, tile, scale, row, here, n0, I)
    if not H_STATIC:
        tl.store(h_scales + c * max_rows + row, scale, mask=here)


@triton.jit(do_not_specialize=["max_rows", "max_tiles"])
def _down(
    h_box, h_scales, w2, s2, r2, bias, y, max_rows, tile_expert, tile_row, tile_rows, num_tiles, max_tiles,
    H: tl.constexpr, I: tl.constexpr, BLOCKS: tl.constexpr, SCALED: tl.constexpr, STATIC: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, GROUP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    COLUMN_TILES: tl.constexpr = (H + BN - 1) // BN
    tiles = tl.load(num_tiles)
    m, c = raster(tl.program_id(0), max_tiles, COLUMN_TILES, GROUP)
    e, first, rows = read(m, tile_expert, tile_row, tile_rows)
    if m >= tiles:
        return
    n0 = c * BN
    row = first + tl.arange(0, BM)
    here = tl.arange(0, BM) < rows
    acc = tl.zeros([BM, BN], tl.float32)
    h_scale = row_scales(h_scales, row, here, 0, max_rows, I, SCALED, STATIC)
    w_scale = weight_scale(s2, e, n0, 0, H, I, BLOCKS)
    for k0 in tl.range(0, I, BK, num_stages=STAGES):
        a = h_box.load([first, k0])
        w = tl.reshape(w2.load([block_of(e, k0, I), n0, k0 % 128]), [BN, BK])
        if BLOCKS or SCALED > 0:
            next_h = row_scales(h_scales, row, here, k0 + BK, max_rows, I, SCALED, STATIC)
            next_w = weight_scale(s2, e, n0, k0 + BK, H, I, BLOCKS)
            acc += tl.dot(a, w.T) * (h_scale * w_scale)[:, None]
            h_scale, w_scale = next_h, next_w
        else:
            acc = tl.dot(a, w.T, acc)
    if not (BLOCKS or SCALED > 0):
        acc *= (h_scale * w_scale)[:, None]
    if r2 is not None:
        n = n0 + tl.arange(0, BN)
        acc *= tl.load(r2 + e * H + n, mask=n < H, other=0.0)[None, :]
    if bias is not None:
        n = n0 + tl.arange(0, BN)
        acc += tl.load(bias + e * H + n, mask=n < H, other=0.0).to(tl.float32)[None, :]
    store(y, None, acc, first, rows, n0, H, BM, BN, False)
