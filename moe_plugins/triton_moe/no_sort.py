"""Few tokens: every pair reads its expert's matrices by itself, in two kernels and without a map.

The weights are streamed once through registers and multiplied there: with one row per expert there is nothing for
tensor cores to do, and what counts is many small loads in flight. An expert that two tokens share is read twice.
"""

# Kernels are functions of tiles, for which Python has no types; their names are those of the formulas.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202, E741

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from moe_core.activation import Activation
from moe_core.fused_weights import FusedExpertWeights
from moe_plugins.triton_moe.activation import activate, activation_meta
from moe_plugins.triton_moe.launch import launch


class NoSortConfig(NamedTuple):
    """Tiles of the two kernels."""

    up_neurons: int = 2
    """Neurons of a program; gate and up rows of each."""
    up_block: int = 2048
    """Most of H that is in registers at once."""
    up_warps: int = 4
    down_columns: int = 1
    """Output columns of a program, of one token and all its experts."""
    down_block: int = 512
    """Most of I that is in registers at once, for each of the experts."""
    down_warps: int = 2


def run(
    x_TH: torch.Tensor,
    ids_TK: torch.Tensor,
    scales_TK: torch.Tensor,
    weights: FusedExpertWeights,
    activation: Activation,
    slot_start: int,
    h_PI: torch.Tensor,
    out_TH: torch.Tensor,
    config: NoSortConfig = NoSortConfig(),  # noqa: B008  # immutable
    *,
    pdl: bool = False,
) -> None:
    """`out_TH` becomes the weighted sum of the local experts; `h_PI` is scratch of ``[T * K, I]``."""
    num_tokens, hidden = out_TH.shape
    num_local, _, inter = weights.w2_EHI.shape
    num_pairs, top_k = ids_TK.numel(), ids_TK.shape[1]
    block = min(config.up_block, triton.next_power_of_2(hidden))
    launch(
        _up, (num_pairs * triton.cdiv(inter, config.up_neurons),),
        (weights.fc1_EGH, weights.fc1_bias_EG, x_TH, h_PI, ids_TK, slot_start),
        {
            "L": num_local, "H": hidden, "I": inter, "K": top_k, "N": config.up_neurons, "BLOCK": block,
            "GATED": weights.gated, "PDL": pdl, **activation_meta(activation),
        },
        num_warps=config.up_warps, pdl=pdl,
    )  # fmt: skip
    launch(
        _down, (num_tokens * triton.cdiv(hidden, config.down_columns),),
        (weights.w2_EHI, weights.b2_EH, h_PI, out_TH, ids_TK, scales_TK, slot_start),
        {
            "L": num_local, "H": hidden, "I": inter, "K": top_k, "EXPERTS": triton.next_power_of_2(top_k),
            "N": config.down_columns, "BLOCK": min(config.down_block, triton.next_power_of_2(inter)), "PDL": pdl,
        },
        num_warps=config.down_warps, pdl=pdl,
    )  # fmt: skip


@triton.jit
def weight_rows(w, at_N, is_row_N, k, K: tl.constexpr, BLOCK: tl.constexpr):
    """Tile ``[N, BLOCK]`` of weight rows that start at `at_N`, from column `k` on."""
    kk = k + tl.arange(0, BLOCK)
    is_column = kk >= 0 if K % BLOCK == 0 else kk < K
    return tl.load(
        w + at_N[:, None] + kk[None, :],
        mask=is_row_N[:, None] & is_column[None, :], other=0.0, eviction_policy="evict_first",
    )  # fmt: skip


@triton.jit(do_not_specialize=["slot_start"])
def _up(
    fc1, b1, x, h, ids, slot_start,
    L: tl.constexpr, H: tl.constexpr, I: tl.constexpr, K: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
    GATED: tl.constexpr, PDL: tl.constexpr,
    KIND: tl.constexpr, ALPHA: tl.constexpr, BETA: tl.constexpr, CLAMP: tl.constexpr, AFTER: tl.constexpr,
):  # fmt: skip
    """N neurons of one pair. Foreign pairs leave their `h` undefined; nobody reads it."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    pair = tl.program_id(0) // ((I + N - 1) // N)
    n = tl.program_id(0) % ((I + N - 1) // N) * N + tl.arange(0, N)
    e = tl.load(ids + pair) - slot_start
    if (e >= 0) & (e < L):
        G: tl.constexpr = 2 * I if GATED else I
        is_row = n < I
        at = e.to(tl.int64) * (G * H) + n * H
        gate, up = tl.zeros([N], tl.float32), tl.zeros([N], tl.float32)
        for k in tl.static_range(0, H, BLOCK):
            gate_w = weight_rows(fc1, at, is_row, k, H, BLOCK)
            if GATED:
                up_w = weight_rows(fc1, at + I * H, is_row, k, H, BLOCK)
            kk = k + tl.arange(0, BLOCK)
            row = tl.load(x + (pair // K) * H + kk, mask=kk < H, other=0.0).to(tl.float32)[None, :]
            gate += tl.sum(gate_w.to(tl.float32) * row, 1)
            if GATED:
                up += tl.sum(up_w.to(tl.float32) * row, 1)
        if b1 is not None:
            gate += tl.load(b1 + e * G + n, mask=is_row, other=0.0).to(tl.float32)
            if GATED:
                up += tl.load(b1 + e * G + I + n, mask=is_row, other=0.0).to(tl.float32)
        out = activate(gate, up, KIND, ALPHA, BETA, CLAMP, AFTER)
        tl.store(h + pair * I + n, out.to(h.dtype.element_ty), mask=is_row)


@triton.jit(do_not_specialize=["slot_start"])
def _down(
    w2, b2, h, out, ids, scales, slot_start,
    L: tl.constexpr, H: tl.constexpr, I: tl.constexpr, K: tl.constexpr, EXPERTS: tl.constexpr, N: tl.constexpr,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """N output columns of one token: its experts side by side in registers, summed there."""
    token = tl.program_id(0) // ((H + N - 1) // N)
    first = tl.program_id(0) % ((H + N - 1) // N) * N
    # Weights and routes were complete before the predecessor began: only `h` is its own.
    s = tl.arange(0, EXPERTS * N) // N
    n = first + tl.arange(0, EXPERTS * N) % N
    e = tl.load(ids + token * K + s, mask=s < K, other=-1) - slot_start
    here = (e >= 0) & (e < L) & (s < K)
    scale = tl.where(here, tl.load(scales + token * K + s, mask=s < K, other=0.0), 0.0)
    is_row = here & (n < H)
    at = e.to(tl.int64) * (H * I) + n * I
    w = weight_rows(w2, at, is_row, 0, I, BLOCK)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    total = tl.zeros([EXPERTS * N], tl.float32)
    for i in tl.static_range(0, I, BLOCK):
        if i > 0:
            w = weight_rows(w2, at, is_row, i, I, BLOCK)
        ii = i + tl.arange(0, BLOCK)
        row = tl.load(
            h + (token * K + s)[:, None] * I + ii[None, :],
            mask=here[:, None] & (ii < I)[None, :], other=0.0, cache_modifier=".cg",
        )  # fmt: skip
        total += tl.sum(w.to(tl.float32) * row.to(tl.float32), 1)
    if b2 is not None:
        total += tl.load(b2 + e * H + n, mask=is_row, other=0.0).to(tl.float32)
    summed = tl.sum(tl.reshape(total * scale, [EXPERTS, N]), 0)
    columns = first + tl.arange(0, N)
    tl.store(out + token * H + columns, summed.to(out.dtype.element_ty), mask=columns < H)
