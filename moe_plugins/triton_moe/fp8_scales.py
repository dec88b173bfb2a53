"""Scales beside the tiles of the fp8 kernels: read step by step, and made of what a kernel stores."""

# Kernels are functions of tiles, for which Python has no types; their names are those of the formulas.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from moe_plugins.triton_moe.fp8_weights import BLOCK
from moe_plugins.triton_moe.quant_rows import scale_of, to_e4m3

WIDTH: Final = tl.constexpr(BLOCK)


@triton.jit
def weight_scale(s, matrix, n, k, N: tl.constexpr, K: tl.constexpr, BLOCKS: tl.constexpr):
    """The scale at row `n` and column `k` of one of the matrices ``[N, K]``; zero past its last column."""
    if BLOCKS:
        ROWS: tl.constexpr = (N + WIDTH - 1) // WIDTH
        COLUMNS: tl.constexpr = (K + WIDTH - 1) // WIDTH
        scale = tl.load(s + (matrix * ROWS + n // WIDTH) * COLUMNS + k // WIDTH, mask=k < K, other=0.0)
    else:
        scale = tl.load(s + matrix)
    return scale


@triton.jit
def row_scales(s, row, here, k, num_rows, K: tl.constexpr, SCALED: tl.constexpr, STATIC: tl.constexpr):
    """The scales of rows of ``[num_rows, K]`` at column `k`; zero past the last one, and where not `here`."""
    if STATIC:
        scales = tl.load(s) + tl.zeros_like(row).to(tl.float32)
    elif SCALED > 0:
        scales = tl.load(s + k // SCALED * num_rows + row, mask=here & (k < K), other=0.0)
    else:
        scales = tl.load(s + row, mask=here, other=0.0)
    return scales


@triton.jit
def row_scales_of(tile, scales, STATIC: tl.constexpr):
    """The scales that the rows of `tile` get: their own, or the static one of `scales`."""
    return tl.load(scales) + tl.zeros([tile.shape[0]], tl.float32) if STATIC else scale_of(tile, 1)


@triton.jit
def store_codes(h, tile, scale, row, here, n0, N: tl.constexpr):
    """Store `tile` in units of `scale`, one for each row, at column `n0` of ``[..., N]``."""
    n = n0 + tl.arange(0, tile.shape[1])
    at = h + row.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(at, to_e4m3(tile, scale[:, None]), mask=here[:, None] & (n < N)[None, :])
