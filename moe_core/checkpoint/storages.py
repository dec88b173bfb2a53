"""How the matrices of a quantized checkpoint are stored, as data: names, element types and packing of their parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

import torch

from moe_core.checkpoint import packing
from moe_core.contract.vocabulary import QuantAlgo

_ALGO = QuantAlgo
_FLOATS: Final = (torch.float32, torch.bfloat16, torch.float16)
_BYTES: Final = (torch.uint8, torch.int8)
_POWERS: Final = (torch.uint8, torch.float8_e8m0fnu)
ORDER: Final = ("g_idx", "weight_g_idx")
"""The group of each column, of integers with scales per group."""
_INPUT_SCALES: Final = ("input_scale", "activation_scale")
HARMLESS: Final = (*_INPUT_SCALES, "input_global_scale", "weight_shape")
"""Tensors beside the weights that do not change what the experts are: static scales of their inputs, and shapes."""

ROUTER_IN_EXPERTS: Final = ("experts.e_score_correction_bias",)
"""Paths of tensors of the router that some checkpoints have among those of the experts."""


@dataclass(frozen=True)
class Part:
    """One tensor of a matrix ``[N, K]``."""

    names: tuple[str, ...]
    """What it is called, by anyone; only one is there."""
    dtypes: tuple[torch.dtype, ...]
    """What it may be stored as; none: the activation's element type."""
    packed: tuple[int, int] = (1, 1)
    """Rows and columns that share a stored element, on top of those that share a scale."""
    transposed: bool = False
    """Stored with K first."""
    inner: int | None = None
    """Size of one more dimension, inside the last."""
    decode: Callable[[torch.Tensor], torch.Tensor] = packing.same
    is_optional: bool = False


@dataclass(frozen=True)
class Storage:
    """The parts of a matrix, by field of :class:`moe_core.quantization.QuantizedTensor`."""

    name: str
    parts: Mapping[str, Part]
    beside: tuple[str, ...] = ()
    """Tensors that its matrices have beside these, and that loading does not need."""
    zero: tuple[str, ...] = ()
    """Tensors that its matrices may have beside these if they are zero."""
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Values of keys of the quantization config, where there are any, without which the bytes mean something else."""
    input_scale: Part | None = None
    """The static scale of a projection's input; ``None``: not read, if there is one."""


_SCALES: Final = ("weight_scale_inv", "weight_scale", "scale_inv", "scale", "scales")
_FLOAT_SCALE = Part(_SCALES, (*_FLOATS, torch.float8_e8m0fnu), decode=packing.as_float)
_POWER_SCALE = Part(_SCALES, _POWERS, decode=packing.as_powers)

PLAIN: Final = Storage("not quantized", {"data": Part(("weight",), ())})
FLOAT8: Final = Storage("float8", {"data": Part(("weight",), (torch.float8_e4m3fn,)), "scale": _FLOAT_SCALE})
FLOAT8_STATIC: Final = replace(FLOAT8, input_scale=Part(_INPUT_SCALES, _FLOATS, is_optional=True))
INT8: Final = Storage("int8", {"data": Part(("weight",), (torch.int8,)), "scale": _FLOAT_SCALE})
MXFP8: Final = Storage("MXFP8", {"data": Part(("weight",), (torch.float8_e4m3fn,)), "scale": _POWER_SCALE})
_PAIRS = Part(("weight", "weight_packed"), _BYTES, (1, 2), decode=packing.as_bytes)
MXFP4: Final = Storage("MXFP4", {"data": _PAIRS, "scale": _POWER_SCALE})
MXFP4_BLOCKS: Final = Storage(
    "MXFP4 blocks of gpt-oss",
    {
        "data": Part(("blocks",), (torch.uint8,), (1, 32), inner=16),
        "scale": Part(("scales",), _POWERS, decode=packing.as_powers),
    },
)
_E4M3_SCALE = Part(("weight_scale",), (torch.float8_e4m3fn,))
NVFP4_MODELOPT: Final = Storage(
    "NVFP4 of ModelOpt",
    {
        "data": Part(("weight",), (torch.uint8,), (1, 2)),
        "scale": _E4M3_SCALE,
        "global_scale": Part(("weight_scale_2",), (torch.float32,)),
    },
)
NVFP4_COMPRESSED: Final = Storage(
    "NVFP4 of compressed-tensors",
    {
        "data": Part(("weight_packed",), (torch.uint8,), (1, 2)),
        "scale": _E4M3_SCALE,
        "global_scale": Part(("weight_global_scale",), (torch.float32,), decode=packing.reciprocal),
    },
)
_WORDS: Final = (torch.int32,)
INT4_COMPRESSED: Final = Storage(
    "int4 of compressed-tensors",
    {
        "data": Part(("weight_packed",), _WORDS, (1, 8), decode=packing.as_bytes),
        "scale": Part(("weight_scale",), _FLOATS),
        "zero": Part(("weight_zero_point",), _WORDS, (8, 1), decode=packing.words_along_rows, is_optional=True),
    },
)
GPTQ: Final = Storage(
    "GPTQ",
    {
        "data": Part(("qweight",), _WORDS, (1, 8), transposed=True, decode=packing.as_bytes),
        "scale": Part(("scales",), _FLOATS, transposed=True),
        "zero": Part(("qzeros",), _WORDS, (8, 1), transposed=True, decode=packing.gptq_zeros),
    },
    zero=("bias",),  # AutoGPTQ wrote one for every matrix
    settings={"checkpoint_format": ("gptq",)},
)
AWQ: Final = Storage(
    "AWQ",
    {
        "data": Part(("qweight",), _WORDS, (8, 1), transposed=True, decode=packing.awq_codes),
        "scale": Part(("scales",), _FLOATS, transposed=True),
        "zero": Part(("qzeros",), _WORDS, (8, 1), transposed=True, decode=packing.awq_zeros),
    },
    settings={"version": ("gemm",)},
)
INT4_MODELOPT: Final = Storage(
    "int4 of ModelOpt",
    {
        "data": Part(("weight",), _BYTES, (2, 1), decode=packing.signed_pairs_along_rows),
        "scale": Part(("weight_scale",), _FLOATS),
    },
    beside=("weight_scale_2",),  # kernels divide the scales by it and multiply the result
)
INT4_CUSTOM: Final = Storage(
    "int4 of W4A8_CUSTOM",
    {
        "data": Part(("weight",), _BYTES, (1, 2), decode=packing.signed_pairs),
        "scale": Part(("weight_scale_inv",), _FLOATS),
    },
)  # fmt: skip

STORAGES: Final[Mapping[QuantAlgo, tuple[Storage, ...]]] = MappingProxyType(
    {
        _ALGO.NONE: (PLAIN,),
        _ALGO.FP8: (FLOAT8_STATIC,),
        _ALGO.FP8_PER_CHANNEL_PER_TOKEN: (FLOAT8,),
        _ALGO.FP8_BLOCK_SCALES: (FLOAT8,),
        _ALGO.NVFP4: (NVFP4_MODELOPT, NVFP4_COMPRESSED),
        _ALGO.W4A16_NVFP4: (NVFP4_MODELOPT, NVFP4_COMPRESSED),
        _ALGO.W4A8_NVFP4_FP8: (NVFP4_MODELOPT,),
        _ALGO.W4A16_MXFP4: (MXFP4_BLOCKS, MXFP4),
        _ALGO.W4A8_MXFP4_FP8: (MXFP4_BLOCKS, MXFP4),
        _ALGO.W4A8_MXFP4_MXFP8: (MXFP4_BLOCKS, MXFP4),
        _ALGO.MXFP8: (MXFP8,),
        _ALGO.W8A8_SQ: (INT8,),
        _ALGO.W8A16: (INT8,),
        _ALGO.W4A16: (INT4_COMPRESSED,),
        _ALGO.W4A16_AWQ: (AWQ, INT4_COMPRESSED, INT4_MODELOPT),
        _ALGO.W4A16_GPTQ: (GPTQ, INT4_COMPRESSED),
        _ALGO.W4A8_AWQ: (INT4_MODELOPT,),
        _ALGO.W4A8_CUSTOM: (INT4_CUSTOM,),
    }
)
"""What the matrices of each format may be stored as."""
