"""NVFP4: e2m1 codes in blocks of 16, an e4m3 scale per block, a float32 scale per matrix."""

from __future__ import annotations

import torch

from moe_core.quantization.blocks import amax, quotient, spread
from moe_core.quantization.elements import Element, encode, to_e4m3
from moe_core.quantization.formats import Format
from moe_core.quantization.tensor import QuantizedTensor

RANGE = Element.E4M3.largest * Element.E2M1.largest
"""Largest product of a block scale and a code."""


def quantize_nvfp4(x: torch.Tensor, format_: Format, global_scale: torch.Tensor | None = None) -> QuantizedTensor:
    """Codes of float32 `x`; `global_scale` is ``amax(matrix) / (448 * 6)`` unless it is given (a static scale).

    With G its reciprocal, a block's scale is ``s = e4m3(G * amax / 6)`` and a code ``e2m1(x * G / s)``. A block whose
    scale underflows to zero is lost; one whose scale is subnormal may saturate.
    """
    if global_scale is None:
        magnitude = amax(x, (None, None))
        global_scale = torch.where(magnitude > 0, quotient(magnitude, RANGE), 1.0)
    encode_scale = _reciprocal(global_scale)
    scale = to_e4m3(quotient(encode_scale * amax(x, format_.block), Element.E2M1.largest))
    factor = _reciprocal(scale.float() / encode_scale)
    codes = encode(format_.element, x * spread(factor, format_.block, *x.shape[-2:]))
    return QuantizedTensor(format_, codes, scale, global_scale)


def _reciprocal(x: torch.Tensor) -> torch.Tensor:
    """``1 / x``, finite also for zero."""
    return (1 / x).clamp(max=torch.finfo(torch.float32).max)
