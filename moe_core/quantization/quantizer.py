"""From values to codes, in any format."""

from __future__ import annotations

import torch

from moe_core.quantization.elements import Element
from moe_core.quantization.formats import FP8, Format, ScaleType
from moe_core.quantization.fp8 import quantize_fp8
from moe_core.quantization.integer import quantize_integer, quantize_with_zero_points
from moe_core.quantization.mx import quantize_mx
from moe_core.quantization.nvfp4 import quantize_nvfp4
from moe_core.quantization.tensor import QuantizedTensor


def quantize(
    x: torch.Tensor, format_: Format, *, static_scale: torch.Tensor | None = None, zero_points: bool = False
) -> QuantizedTensor:
    """`x` ``[..., N, K]``, of any float type, in `format_`: weights, or the input of a projection.

    Args:
        static_scale: float32 ``[..., 1, 1]``, the scale of a whole matrix where it was calibrated beforehand: of FP8
            per tensor, and the global scale of two-level formats. A multiplier, like every scale here.
        zero_points: give groups of four-bit integers a zero point.

    Raises ``ValueError`` for an argument that `format_` has no use for.
    """
    x = x.float()
    if static_scale is not None and not (format_ == FP8 or format_.is_two_level):
        raise ValueError(f"{format_} has no static scale")
    if zero_points:
        return quantize_with_zero_points(x, format_)
    match format_.scale, format_.element:
        case ScaleType.E4M3, _:
            return quantize_nvfp4(x, format_, static_scale)
        case ScaleType.UE8M0, _:
            return quantize_mx(x, format_)
        case _, Element.E4M3:
            return quantize_fp8(x, format_, static_scale)
        case _:
            return quantize_integer(x, format_)
