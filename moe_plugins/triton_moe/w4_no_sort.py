"""Few tokens and quantized weights: every pair reads its expert's matrices by itself, in two kernels, without a map.

Even one row goes through the tensor cores: to unpack four-bit codes takes most of what the other units can do.
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
from moe_plugins.triton_moe.activation import activation_meta
from moe_plugins.triton_moe.launch import launch
from moe_plugins.triton_moe.w4_swap_ab import activated, product, stacked_rows
from moe_plugins.triton_moe.w4_weights import W4Weights


class W4NoSortConfig(NamedTuple):
    """Tiles of the two kernels."""

    up_rows: int = 64
    """Weight rows of a program; where they are gated, half of them are gate's and half are up's."""
    up_stages: int = 6
    up_warps: int = 4
    down_columns: int = 16
    """Output columns of a program, of one token and all its experts: as many weight rows of each."""
    down_stages: int = 6
    down_warps: int = 4
    unroll: int = 1
    """Blocks of 128 columns of a step; stages are of as many."""


def run(
    x_TH: torch.Tensor,
    ids_TK: torch.Tensor,
    scales_TK: torch.Tensor,
    weights: W4Weights,
    activation: Activation,
    slot_start: int,
    h_PI: torch.Tensor,
    out_TH: torch.Tensor,
    config: W4NoSortConfig = W4NoSortConfig(),  # noqa: B008  # immutable
    *,
    pdl: bool = False,
) -> None:
    """`out_TH` becomes the weighted sum of the local experts; `h_PI` is scratch of ``[T * K, I]``.

    H and I multiples of 8.
    """
    num_local, hidden, inter = weights.sizes
    num_tokens, top_k = ids_TK.shape
    columns = config.up_rows // (2 if weights.gated else 1)
    launch(
        _up, (num_tokens * top_k * triton.cdiv(inter, columns),),
        (x_TH, *weights.fc1, weights.b1, h_PI, ids_TK, slot_start),
        {
            "L": num_local, "H": hidden, "I": inter, "K": top_k, "N": config.up_rows, "STAGES": config.up_stages,
            "UNROLL": config.unroll, **weights.format.meta(), "GATED": weights.gated, "PDL": pdl,
            **activation_meta(activation),
        },
        num_warps=config.up_warps, num_stages=config.up_stages, pdl=pdl,
    )  # fmt: skip
    launch(
        _down, (num_tokens * triton.cdiv(hidden, config.down_columns),),
        (h_PI, *weights.w2, weights.b2, out_TH, ids_TK, scales_TK, slot_start),
        {
            "L": num_local, "H": hidden, "I": inter, "K": top_k, "EXPERTS": triton.next_power_of_2(top_k),
            "N": config.down_columns, "STAGES": config.down_stages, "UNROLL": config.unroll, **weights.format.meta(),
            "PDL": pdl,
        },
        num_warps=config.down_warps, num_stages=config.down_stages, pdl=pdl,
    )  # fmt: skip


@triton.jit(do_not_specialize=["slot_start"])
def _up(
    x, words, scales, row_scale, b1, h, ids, slot_start,
    L: tl.constexpr, H: tl.constexpr, I: tl.constexpr, K: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
    UNROLL: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr, PLAIN: tl.constexpr, GATED: tl.constexpr,
    PDL: tl.constexpr,
    KIND: tl.constexpr, ALPHA: tl.constexpr, BETA: tl.constexpr, CLAMP: tl.constexpr, AFTER: tl.constexpr,
):  # fmt: skip
    """Some neurons of one pair. Foreign pairs leave their `h` undefined; nobody reads it."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    COLUMNS: tl.constexpr = N // 2 if GATED else N
    COLUMN_TILES: tl.constexpr = (I + COLUMNS - 1) // COLUMNS
    pair = tl.program_id(0) // COLUMN_TILES
    n0 = tl.program_id(0) % COLUMN_TILES * COLUMNS
    e = tl.load(ids + pair) - slot_start
    if (e >= 0) & (e < L):
        t = tl.arange(0, 8)  # the narrowest operand; the first column is the token
        n, is_row = stacked_rows(n0, N, I, GATED)
        acc = product(
            words, scales, row_scale, x, e, n, is_row, (pair // K) * H + t * 0, t == 0,
            2 * I if GATED else I, H, N, 8, I % COLUMNS == 0, STAGES, UNROLL, FORMAT, GROUP, PLAIN,
        )  # fmt: skip
        out, column = activated(acc, b1, e, n, is_row, n0, I, N, 8, GATED, KIND, ALPHA, BETA, CLAMP, AFTER)
        row = tl.sum(tl.where((t == 0)[None, :], out, 0.0), 1)
        tl.store(h + pair * I + column, row.to(h.dtype.element_ty), mask=column < I)


@triton.jit(do_not_specialize=["slot_start"])
def _down(
    h, words, scales, row_scale, b2, out, ids, weighing, slot_start,
    L: tl.constexpr, H: tl.constexpr, I: tl.constexpr, K: tl.constexpr, EXPERTS: tl.constexpr, N: tl.constexpr,
    STAGES: tl.constexpr, UNROLL: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr, PLAIN: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """N output columns of one token: rows of all its experts times the rows of all its pairs, of which the products
    of an expert with its own pair are kept."""
    token = tl.program_id(0) // ((H + N - 1) // N)
    first = tl.program_id(0) % ((H + N - 1) // N) * N
    # Routes were complete before the predecessor began: only `h` is its own.
    s, n = tl.arange(0, EXPERTS * N) // N, first + tl.arange(0, EXPERTS * N) % N
    e = tl.load(ids + token * K + s, mask=s < K, other=-1) - slot_start
    here = (e >= 0) & (e < L) & (s < K)
    weight = tl.where(here, tl.load(weighing + token * K + s, mask=s < K, other=0.0), 0.0)
    T: tl.constexpr = EXPERTS if EXPERTS > 8 else 8
    t = tl.arange(0, T)
    slot = tl.load(ids + token * K + t, mask=t < K, other=-1) - slot_start
    is_row = here & (n < H)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    acc = product(
        words, scales, row_scale, h, tl.where(here, e, 0), n, is_row, (token * K + t) * I,
        (slot >= 0) & (slot < L) & (t < K), H, I, EXPERTS * N, T, False, STAGES, UNROLL, FORMAT, GROUP, PLAIN,
    )  # fmt: skip
    total = tl.sum(tl.where(t[None, :] == s[:, None], acc, 0.0), 1)
    if b2 is not None:
        total += tl.load(b2 + e * H + n, mask=is_row, other=0.0).to(tl.float32)
    summed = tl.sum(tl.reshape(total * weight, [EXPERTS, N]), 0)
    columns = first + tl.arange(0, N)
    tl.store(out + token * H + columns, summed.to(out.dtype.element_ty), mask=columns < H)
