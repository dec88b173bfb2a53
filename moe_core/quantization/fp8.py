"""float8 with float scales: per tensor, per row (channel or token), per group of 128 columns, per 128 x 128 block."""

from __future__ import annotations

import torch

from moe_core.quantization.blocks import WHOLE, float_scale, spread
from moe_core.quantization.elements import Element, to_e4m3
from moe_core.quantization.formats import FP8_BLOCKS, Format, ScaleType
from moe_core.quantization.mx import quantize_mx
from moe_core.quantization.tensor import QuantizedTensor

FP8_BLOCKS_POW2 = Format(Element.E4M3, ScaleType.UE8M0, FP8_BLOCKS.block)
"""128 x 128 blocks as Blackwell's kernels take them."""


def quantize_fp8(x: torch.Tensor, format_: Format, scale: torch.Tensor | None = None) -> QuantizedTensor:
    """``q = e4m3(x / scale)`` of float32 `x`, with ``scale = amax / 448`` unless it is given (a static scale)."""
    if scale is None:
        scale = float_scale(x, format_.block, Element.E4M3.largest)
    return QuantizedTensor(format_, to_e4m3(x / spread(scale, format_.block, *x.shape[-2:])), scale)


def resmoothed(weights: QuantizedTensor) -> QuantizedTensor:
    """`weights` in 128 x 128 blocks, rounded a second time so that their scales become powers of two.

    Blackwell's kernels compute with these, so on them a layer differs from its checkpoint. Repeating it changes no
    value.
    """
    if weights.format.element is not Element.E4M3 or weights.format.block != FP8_BLOCKS.block:
        raise ValueError(f"only 128 x 128 blocks of e4m3 are resmoothed: found {weights.format}")
    if weights.offset != WHOLE:
        raise ValueError(f"a share that begins within a block, {weights.offset}, has other blocks: resmooth the whole")
    return quantize_mx(weights.dequantize(), FP8_BLOCKS_POW2)
