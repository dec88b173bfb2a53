"""Microscaling: MXFP4 and MXFP8, e2m1 or e4m3 codes in blocks whose scale is a power of two."""

from __future__ import annotations

import math

import torch

from moe_core.quantization.blocks import amax, spread
from moe_core.quantization.elements import encode
from moe_core.quantization.formats import Format
from moe_core.quantization.tensor import QuantizedTensor

BIAS = 127
"""Scale byte of 1."""
LARGEST_BYTE = 254
NAN_BYTE = 255


def quantize_mx(x: torch.Tensor, format_: Format) -> QuantizedTensor:
    """Codes of float32 ``x / 2 ** e`` with the least e for which no magnitude is above the element's largest.

    The scale byte is e + 127, limited to 0 … 254; of a block of zeros it is 0, of one with a NaN 255. (OCP's own
    rule takes a lower e and saturates; what either makes is dequantized alike.)
    """
    scale = _scale(amax(x, format_.block), format_.element.largest)
    scaled = x / spread(scale.float(), format_.block, *x.shape[-2:])
    return QuantizedTensor(format_, encode(format_.element, scaled), scale)


def _scale(magnitude: torch.Tensor, largest: float) -> torch.Tensor:
    """``2 ** ceil(log2(magnitude / largest))``, from exponents and mantissas: neither logarithm nor quotient rounds."""
    mantissa, exponent = torch.frexp(magnitude.clamp(max=torch.finfo(torch.float32).max))
    largest_mantissa, largest_exponent = math.frexp(largest)
    byte = (exponent - largest_exponent + (mantissa > largest_mantissa) + BIAS).clamp(0, LARGEST_BYTE)
    byte = byte.where(magnitude > 0, 0).where(~magnitude.isnan(), NAN_BYTE)
    return byte.to(torch.uint8).view(torch.float8_e8m0fnu)
