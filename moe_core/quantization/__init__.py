"""Numeric formats of experts in plain torch: quantize, dequantize, and the layouts of scales."""

from moe_core.quantization.elements import Element, pack, unpack
from moe_core.quantization.formats import Format, ScaleType, input_format, weight_format
from moe_core.quantization.fp8 import resmoothed
from moe_core.quantization.layouts import ScaleLayout, swizzle, unswizzle
from moe_core.quantization.quantizer import quantize
from moe_core.quantization.tensor import Matrix, QuantizedTensor, dequantized, plain

__all__ = [
    "quantize",
    "dequantized",
    "plain",
    "QuantizedTensor",
    "Matrix",
    "Format",
    "Element",
    "ScaleType",
    "weight_format",
    "input_format",
    "resmoothed",
    "ScaleLayout",
    "swizzle",
    "unswizzle",
    "pack",
    "unpack",
]
