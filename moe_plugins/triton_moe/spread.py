"""Tokens into the rows of the map, once for each of their pairs: kernels that read those gather nothing."""

# Kernels are functions of tiles, for which Python has no types; their names are those of the formulas.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from moe_plugins.triton_moe.launch import launch


def spread_rows(
    x_TH: torch.Tensor, row_of_pair: torch.Tensor, top_k: int, rows_RH: torch.Tensor, *, pdl: bool = False
) -> None:
    """A copy of each token in the row of each of its pairs, -1 for none; other rows stay undefined."""
    num_tokens, width = x_TH.shape
    launch(
        _spread, (num_tokens,), (x_TH, row_of_pair, rows_RH),
        {"H": width, "WIDTH": triton.next_power_of_2(width), "K": top_k, "PDL": pdl},
        num_warps=4 if width <= 4096 else 8, pdl=pdl,
    )  # fmt: skip


@triton.jit
def _spread(
    x, row_of_pair, rows, H: tl.constexpr, WIDTH: tl.constexpr, K: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    t = tl.program_id(0)
    c = tl.arange(0, WIDTH)
    token = tl.load(x + t.to(tl.int64) * H + c, mask=c < H)
    for k in tl.static_range(K):
        row = tl.load(row_of_pair + t * K + k)
        tl.store(rows + row.to(tl.int64) * H + c, token, mask=(c < H) & (row >= 0))
