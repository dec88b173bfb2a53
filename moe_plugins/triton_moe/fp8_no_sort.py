"""Few tokens and e4m3 weights: every pair reads its expert's matrices by itself, in two kernels and without a map.

Weights become float32 in registers and activations stay as they are: nothing is gained by quantizing them.
"""

# Kernels are functions of tiles, for which Python has no types; their names are those of the formulas.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ANN001, ANN202, E741

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from moe_core.activation import Activation
from moe_plugins.triton_moe.activation import activate, activation_meta
from moe_plugins.triton_moe.fp8_blocks import column_at, row_at
from moe_plugins.triton_moe.fp8_weights import BLOCK, Fp8Weights
from moe_plugins.triton_moe.launch import launch
from moe_plugins.triton_moe.no_sort import NoSortConfig

VECTOR: Final = tl.constexpr(16)
"""Columns that a thread loads at once."""
SCALED: Final = tl.constexpr(BLOCK)


def run(
    x_TH: torch.Tensor,
    ids_TK: torch.Tensor,
    scales_TK: torch.Tensor,
    weights: Fp8Weights,
    activation: Activation,
    slot_start: int,
    h_PI: torch.Tensor,
    out_TH: torch.Tensor,
    config: NoSortConfig = NoSortConfig(),  # noqa: B008  # immutable
    *,
    pdl: bool = False,
) -> None:
    """`out_TH` becomes the weighted sum of the local experts; `h_PI` is scratch of ``[T * K, I]``.

    Of `config`, blocks are at least 128, and `up_neurons` divides 128.
    """
    num_tokens, hidden = out_TH.shape
    num_local, _, inter = weights.sizes
    num_pairs, top_k = ids_TK.numel(), ids_TK.shape[1]
    sizes = {"L": num_local, "H": hidden, "I": inter, "K": top_k, "BLOCKS": weights.blocks, "PDL": pdl}
    launch(
        _up, (num_pairs * triton.cdiv(inter, config.up_neurons),),
        (weights.fc1, weights.s1, weights.r1, weights.b1_EG, x_TH, h_PI, ids_TK, slot_start),
        {
            **sizes, "N": config.up_neurons, "BLOCK": _block(config.up_block, hidden), "HALVES": weights.halves,
            **activation_meta(activation),
        },
        num_warps=config.up_warps, pdl=pdl,
    )  # fmt: skip
    launch(
        _down, (num_tokens * triton.cdiv(hidden, config.down_columns),),
        (weights.w2, weights.s2, weights.r2, weights.b2_EH, h_PI, out_TH, ids_TK, scales_TK, slot_start),
        {
            **sizes, "N": config.down_columns, "BLOCK": _block(config.down_block, inter),
            "EXPERTS": triton.next_power_of_2(top_k),
        },
        num_warps=config.down_warps, pdl=pdl,
    )  # fmt: skip


def _block(most: int, width: int) -> int:
    return max(min(most, int(triton.next_power_of_2(width))), BLOCK)


@triton.jit
def _weight_rows(w, at_N, is_row_N, k, ROWS: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr):
    """Tile ``[N, BLOCK]`` of weight rows, of `ROWS`, that begin at `at_N`, from column `k` on; zero past the last."""
    kk = k + tl.arange(0, BLOCK)
    COLUMNS: tl.constexpr = (K + SCALED - 1) // SCALED * SCALED
    is_column = kk >= 0 if COLUMNS % BLOCK == 0 else kk < COLUMNS
    return tl.load(
        w + at_N[:, None] + column_at(kk, ROWS)[None, :],
        mask=is_row_N[:, None] & is_column[None, :], other=0.0, eviction_policy="evict_first",
    )  # fmt: skip


@triton.jit
def _block_scales(s, at_N, k, K: tl.constexpr, BLOCK: tl.constexpr):
    """Scales ``[N, BLOCK / 128]`` of rows whose own begin at `at_N`, from column `k` on."""
    b = k // SCALED + tl.arange(0, BLOCK // SCALED)
    return tl.load(s + at_N[:, None] + b[None, :], mask=(b * SCALED < K)[None, :], other=0.0)


@triton.jit
def _dot(w, row, scales, N: tl.constexpr, BLOCK: tl.constexpr):
    """``[N, BLOCK / 16]`` sums of what a thread holds of `w` times `row`, in units of `scales`.

    Threads add theirs to each other's once, after the last of these: that takes barriers.
    """
    products = tl.reshape(w.to(tl.float32) * row, [N, BLOCK // SCALED, SCALED // VECTOR, VECTOR])
    return tl.reshape(tl.sum(products, 3) * scales[:, :, None], [N, BLOCK // VECTOR])


@triton.jit
def _sums(w, row, N: tl.constexpr, BLOCK: tl.constexpr):
    """As :func:`_dot`, of codes."""
    return tl.sum(tl.reshape(w.to(tl.float32) * row, [N, BLOCK // VECTOR, VECTOR]), 2)


@triton.jit(do_not_specialize=["slot_start"])
def _up(
    fc1, s1, r1, b1, x, h, ids, slot_start,
    L: tl.constexpr, H: tl.constexpr, I: tl.constexpr, K: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
    HALVES: tl.constexpr, BLOCKS: tl.constexpr, PDL: tl.constexpr,
    KIND: tl.constexpr, ALPHA: tl.constexpr, BETA: tl.constexpr, CLAMP: tl.constexpr, AFTER: tl.constexpr,
):  # fmt: skip
    """N neurons of one pair. Foreign pairs leave their `h` undefined; nobody reads it."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    n0 = tl.program_id(0) % ((I + N - 1) // N) * N
    pair = tl.program_id(0) // ((I + N - 1) // N)
    n = n0 + tl.arange(0, N)
    e = tl.load(ids + pair) - slot_start
    if (e >= 0) & (e < L):
        is_row = n < I
        at = row_at(e, n, HALVES * I, H)
        COLUMNS: tl.constexpr = (H + SCALED - 1) // SCALED if BLOCKS else 1
        ROWS: tl.constexpr = (I + SCALED - 1) // SCALED if BLOCKS else 1
        row_of_scales = (e * HALVES * ROWS + (n0 // SCALED if BLOCKS else 0)) * COLUMNS
        one = tl.zeros([1], tl.int32) + row_of_scales  # for all N neurons
        gate_parts = tl.zeros([N, BLOCK // VECTOR], tl.float32)
        up_parts = tl.zeros([N, BLOCK // VECTOR], tl.float32)
        for k in tl.static_range(0, H, BLOCK):
            gate_w = _weight_rows(fc1, at, is_row, k, HALVES * I, H, BLOCK)
            if HALVES == 2:
                up_w = _weight_rows(fc1, at + I * SCALED, is_row, k, HALVES * I, H, BLOCK)
            kk = k + tl.arange(0, BLOCK)
            row = tl.load(x + (pair // K) * H + kk, mask=kk < H, other=0.0).to(tl.float32)[None, :]
            if BLOCKS:
                gate_parts += _dot(gate_w, row, _block_scales(s1, one, k, H, BLOCK), N, BLOCK)
                if HALVES == 2:
                    up_parts += _dot(up_w, row, _block_scales(s1, one + ROWS * COLUMNS, k, H, BLOCK), N, BLOCK)
            else:
                gate_parts += _sums(gate_w, row, N, BLOCK)
                if HALVES == 2:
                    up_parts += _sums(up_w, row, N, BLOCK)
        gate, up = tl.sum(gate_parts, 1), tl.sum(up_parts, 1)
        if not BLOCKS:
            gate *= tl.load(s1 + row_of_scales)
            if HALVES == 2:
                up *= tl.load(s1 + row_of_scales + 1)
        if r1 is not None:
            gate *= tl.load(r1 + e * HALVES * I + n, mask=is_row, other=0.0)
            if HALVES == 2:
                up *= tl.load(r1 + e * HALVES * I + I + n, mask=is_row, other=0.0)
        if b1 is not None:
            gate += tl.load(b1 + e * HALVES * I + n, mask=is_row, other=0.0).to(tl.float32)
            if HALVES == 2:
                up += tl.load(b1 + e * HALVES * I + I + n, mask=is_row, other=0.0).to(tl.float32)
        out = activate(gate, up, KIND, ALPHA, BETA, CLAMP, AFTER)
        tl.store(h + pair * I + n, out.to(h.dtype.element_ty), mask=is_row)


@triton.jit(do_not_specialize=["slot_start"])
def _down(
    w2, s2, r2, b2, h, out, ids, scales, slot_start,
    L: tl.constexpr, H: tl.constexpr, I: tl.constexpr, K: tl.constexpr, EXPERTS: tl.constexpr, N: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """N output columns of one token: its experts side by side in registers, summed there."""
    ROWS: tl.constexpr = EXPERTS * N
    token = tl.program_id(0) // ((H + N - 1) // N)
    first = tl.program_id(0) % ((H + N - 1) // N) * N
    # Weights and routes were complete before the predecessor began: only `h` is its own.
    s = tl.arange(0, ROWS) // N
    n = first + tl.arange(0, ROWS) % N
    e = tl.load(ids + token * K + s, mask=s < K, other=-1) - slot_start
    here = (e >= 0) & (e < L) & (s < K)
    scale = tl.where(here, tl.load(scales + token * K + s, mask=s < K, other=0.0), 0.0)
    is_row = here & (n < H)
    at = row_at(e, n, H, I)
    w = _weight_rows(w2, at, is_row, 0, H, I, BLOCK)
    if BLOCKS:
        # Foreign experts read those of the first and multiply zeros.
        row_of_scales = tl.where(is_row, e * ((H + SCALED - 1) // SCALED) + n // SCALED, 0)
        at_scales = row_of_scales * ((I + SCALED - 1) // SCALED)
        w_scales = _block_scales(s2, at_scales, 0, I, BLOCK)
    else:
        w_scale = tl.load(s2 + e, mask=here, other=0.0)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    parts = tl.zeros([ROWS, BLOCK // VECTOR], tl.float32)
    for i in tl.static_range(0, I, BLOCK):
        if i > 0:
            w = _weight_rows(w2, at, is_row, i, H, I, BLOCK)
            if BLOCKS:
                w_scales = _block_scales(s2, at_scales, i, I, BLOCK)
        ii = i + tl.arange(0, BLOCK)
        row = tl.load(
            h + (token * K + s)[:, None] * I + ii[None, :],
            mask=here[:, None] & (ii < I)[None, :], other=0.0, cache_modifier=".cg",
        ).to(tl.float32)  # fmt: skip
        parts += _dot(w, row, w_scales, ROWS, BLOCK) if BLOCKS else _sums(w, row, ROWS, BLOCK)
    total = tl.sum(parts, 1)
    if not BLOCKS:
        total *= w_scale
    if r2 is not None:
        total *= tl.load(r2 + e * H + n, mask=is_row, other=0.0)
    if b2 is not None:
        total += tl.load(b2 + e * H + n, mask=is_row, other=0.0).to(tl.float32)
    summed = tl.sum(tl.reshape(total * scale, [EXPERTS, N]), 0)
    columns = first + tl.arange(0, N)
    tl.store(out + token * H + columns, summed.to(out.dtype.element_ty), mask=columns < H)
