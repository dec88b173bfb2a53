"""The weighted sum of each token's rows, in float32 and in order of k: the same bits every time."""

# Kernels are functions of tiles, for which Python has no types; their names are those of the formulas.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from moe_plugins.triton_moe.launch import launch

MANY = 4
"""Rows a token has at least for programs to be as busy with half the columns."""


def weighted_sum(
    y_RH: torch.Tensor, row_of_pair: torch.Tensor, scales_TK: torch.Tensor, out_TH: torch.Tensor, *, pdl: bool = False
) -> None:
    """`out_TH` becomes the sum over k of ``scales[t, k] * y[row of (t, k)]``; pairs without a row add zero."""
    num_tokens, hidden = out_TH.shape
    top_k = scales_TK.shape[1]
    columns = 512 if top_k >= MANY else 1024
    launch(
        _weighted_sum, (num_tokens, triton.cdiv(hidden, columns)), (y_RH, row_of_pair, scales_TK, out_TH),
        {"H": hidden, "K": top_k, "COLUMNS": columns, "PDL": pdl}, num_warps=4, pdl=pdl,
    )  # fmt: skip


@triton.jit
def _weighted_sum(
    y, row_of_pair, scales, out, H: tl.constexpr, K: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr
):
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    t = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    acc = tl.zeros([COLUMNS], tl.float32)
    for k in tl.static_range(K):
        row = tl.load(row_of_pair + t * K + k).to(tl.int64)
        # Both factors are masked: zero times NaN is NaN.
        scale = tl.where(row >= 0, tl.load(scales + t * K + k), 0.0)
        acc += scale * tl.load(y + row * H + n, mask=(n < H) & (row >= 0), other=0.0).to(tl.float32)
    tl.store(out + t * H + n, acc.to(out.dtype.element_ty), mask=n < H)
