"""Integers with float scales: eight bits per row, four bits per row or in groups along K; zero points if asked."""

from __future__ import annotations

import torch

from moe_core.quantization.blocks import LEAST_AMAX, float_scale, in_blocks, quotient, spread
from moe_core.quantization.elements import MIDDLE, Element, encode
from moe_core.quantization.formats import Format
from moe_core.quantization.tensor import QuantizedTensor

LARGEST_CODE = 15


def quantize_integer(x: torch.Tensor, format_: Format) -> QuantizedTensor:
    """``q = round(x / scale)`` of float32 `x`, with ``scale = amax / 127`` or, of four bits, ``amax / 7``."""
    scale = float_scale(x, format_.block, format_.element.largest)
    return QuantizedTensor(format_, encode(format_.element, x / spread(scale, format_.block, *x.shape[-2:])), scale)


def quantize_with_zero_points(x: torch.Tensor, format_: Format) -> QuantizedTensor:
    """``q = round(x / scale) + zero``, 0 … 15, where the range of a group, extended to zero, maps to all 16 codes."""
    if format_.element is not Element.INT4:
        raise ValueError(f"only four-bit integers have zero points: found {format_}")
    groups = in_blocks(x, format_.block)
    low, high = groups.amin(dim=-1).clamp(max=0), groups.amax(dim=-1).clamp(min=0)
    scale = quotient((high - low).clamp(min=LEAST_AMAX), LARGEST_CODE)
    zero = (-low / scale).round().clamp(0, LARGEST_CODE)
    scaled, shift = (spread(t, format_.block, *x.shape[-2:]) for t in (scale, zero - MIDDLE))
    codes = encode(format_.element, (x / scaled).round() + shift)
    return QuantizedTensor(format_, codes, scale, zero=zero.to(torch.uint8))
