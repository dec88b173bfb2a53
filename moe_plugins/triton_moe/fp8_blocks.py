"""Where elements of weights in blocks of 128 columns are, as the fp8 kernels ask for them."""

# Kernels are functions of tiles, for which Python has no types; their names are those of the formulas.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def block_of(e, k, K: tl.constexpr):
    """Which of all experts' blocks has column `k`, of K, of the expert `e`."""
    return e * ((K + 127) // 128) + k // 128


@triton.jit
def row_at(e, n, ROWS: tl.constexpr, K: tl.constexpr):
    """Where row `n` of the expert `e` begins, in the first block of its matrix ``[ROWS, K]``."""
    return block_of(e.to(tl.int64), 0, K) * (ROWS * 128) + n * 128


@triton.jit
def column_at(k, ROWS: tl.constexpr):
    """How far column `k` of a row is from where it begins."""
    # Without the remainder of k, of which the compiler would not know that steps are aligned.
    return k + k // 128 * ((ROWS - 1) * 128)
