"""Weights and activations in e4m3, as the fp8 kernels take them."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import torch

BLOCK: Final = 128
"""Columns of weights that lie together; in the form of DeepSeek, rows and columns of weights that share a scale, and
columns of a token."""


class Fp8Weights(NamedTuple):
    """L experts of H inputs and I neurons. Scales are float32 multipliers: ``w = code * scale``.

    Matrices are as :func:`in_blocks` makes them. H and I are multiples of 16. In `blocks`, the last row and column of
    blocks may be ragged; those of up begin with its first row, wherever that is in FC1.
    """

    fc1: torch.Tensor
    """e4m3 ``[L, ceil(H / 128), G, 128]``: gate in rows 0 ... I - 1, up below it, G = 2 * I; G = I without a gate."""
    s1: torch.Tensor
    """``[L, G / I, ceil(I / 128), ceil(H / 128)]``; per tensor and per row ``[L, G / I, 1, 1]``."""
    w2: torch.Tensor
    """e4m3 ``[L, ceil(I / 128), H, 128]``."""
    s2: torch.Tensor
    """``[L, ceil(H / 128), ceil(I / 128)]``; per tensor and per row ``[L, 1, 1]``."""
    b1_EG: torch.Tensor | None = None
    b2_EH: torch.Tensor | None = None
    gated: bool = True
    blocks: bool = True
    """Scales of 128 x 128 blocks; otherwise of an expert's whole gate, up and down."""
    r1: torch.Tensor | None = None
    """``[L, G]``: scales of rows, times those of `s1`; ``None``: there are none."""
    r2: torch.Tensor | None = None
    """``[L, H]``: the same beside `s2`."""
    x_scale: torch.Tensor | None = None
    """``[1]``: the static scale of tokens, calibrated beforehand; ``None``: they are scaled as they come."""
    h_scale: torch.Tensor | None = None
    """The same of what the activation gives."""

    @property
    def halves(self) -> int:
        """Gate and up, or one without a gate."""
        return 2 if self.gated else 1

    @property
    def sizes(self) -> tuple[int, int, int]:
        """L, H and I."""
        num_local, _, width, _ = self.fc1.shape
        return num_local, self.w2.shape[2], width // self.halves


def in_blocks(*matrices: torch.Tensor) -> torch.Tensor:
    """e4m3 ``[L, ceil(K / 128), N, 128]`` of matrices ``[L, n, K]``, one above the other: N is the sum of their n.

    What a tile of rows needs of a block lies together, so that memory is read in runs of kilobytes. Columns are filled
    up with zeros to whole blocks. Takes no memory but the result's.
    """
    num_local, _, columns = matrices[0].shape
    shape = num_local, -(-columns // BLOCK), sum(matrix.shape[1] for matrix in matrices), BLOCK
    # As bytes: not every version of torch fills and copies float8.
    blocks = torch.zeros(shape, dtype=torch.uint8, device=matrices[0].device)
    n = 0
    for matrix in matrices:
        for b in range(shape[1]):
            part = matrix.view(torch.uint8)[..., b * BLOCK : (b + 1) * BLOCK]
            blocks[:, b, n : n + part.shape[1], : part.shape[2]] = part
        n += matrix.shape[1]
    return blocks.view(torch.float8_e4m3fn)


class Fp8Rows(NamedTuple):
    """N rows of K activations, scaled by `group` columns, by row or by one static scale."""

    data: torch.Tensor
    """e4m3 ``[N, K]``."""
    scales: torch.Tensor
    """float32 multipliers: ``[ceil(K / group), N]``; by row ``[1, N]``; static ``[1]``, given beforehand."""
    group: int = BLOCK
    """Columns that share a scale; 0: all of them."""
    static: bool = False
    """One scale for all, which was calibrated; `group` is 0."""

    @classmethod
    def empty(cls, num_rows: int, width: int, device: torch.device, *, group: int = BLOCK) -> Fp8Rows:
        """Memory for rows whose scales depend on them."""
        data = torch.empty(num_rows, width, dtype=torch.float8_e4m3fn, device=device)
        num_groups = -(-width // group) if group else 1
        return cls(data, torch.empty(num_groups, num_rows, dtype=torch.float32, device=device), group)

    @classmethod
    def empty_static(cls, num_rows: int, width: int, scale: torch.Tensor) -> Fp8Rows:
        """Memory for rows of the static `scale`, float32 ``[1]``."""
        data = torch.empty(num_rows, width, dtype=torch.float8_e4m3fn, device=scale.device)
        return cls(data, scale, 0, static=True)

    @property
    def meta(self) -> dict[str, Any]:
        """The form of the scales as compile-time arguments of the kernels."""
        return {"SCALED": self.group, "STATIC": self.static}


def check_steps(rows: Fp8Rows, block: int) -> None:
    """Raises ``ValueError`` when a step of `block` columns spans several blocks of weights or needs several scales."""
    needed = math.gcd(rows.group, BLOCK)
    if needed % block:
        raise ValueError(f"asked for steps of {block} columns; needed a divisor of {needed}")
