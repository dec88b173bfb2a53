"""Weights and activations in e4m3, as the fp8 kernels take them."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch

BLOCK: Final = 128
"""Rows and columns of weights that share a scale, and columns of a token, in the form of DeepSeek."""


class Fp8Weights(NamedTuple):
    """L experts of H inputs and I neurons. Scales are float32 multipliers: ``w = code * scale``.

    H and I are multiples of 16. In `blocks`, the last row and column of blocks may be ragged; those of up begin with
    its first row, wherever that is in FC1.
    """

    fc1_EGH: torch.Tensor
    """e4m3 ``[L, G, H]``: gate in rows 0 ... I - 1, up below it, G = 2 * I; G = I without a gate."""
    s1: torch.Tensor
    """``[L, G / I, ceil(I / 128), ceil(H / 128)]``; per tensor and per row ``[L, G / I, 1, 1]``."""
    w2_EHI: torch.Tensor
    """e4m3 ``[L, H, I]``."""
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


def check_steps(weights: Fp8Weights, rows: Fp8Rows, block: int) -> None:
    """Raises ``ValueError`` when a step of `block` columns would need several scales."""
    if rows.group % block or (weights.blocks and BLOCK % block):
        needed = f"a divisor of {rows.group or BLOCK}" + (f" and of {BLOCK}" if weights.blocks else "")
        raise ValueError(f"asked for steps of {block} columns; these scales need {needed}")
