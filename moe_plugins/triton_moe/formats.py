"""What weights may be stored as for our kernels: names, bits, and the kernels that read them. Light: no torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from moe_core.contract.memory import DEFAULT_GROUP_SIZE
from moe_core.contract.vocabulary import QuantAlgo

PLAIN: Final = "plain"
"""Kernels that read weights of the activations' type."""
FP8: Final = "fp8"
"""Kernels that multiply e4m3 by e4m3."""
WORDS: Final = "words"
"""Kernels that unpack four- and eight-bit weights in registers."""

QUADS: Final = "quads"
"""Kernels that unpack four-bit weights to e4m3 in registers, and multiply them by e4m3."""

NONE: Final = "none"
INT8: Final = "int8"
BLOCK: Final = 128
"""Columns that share a scale at most: wider groups of integers are several of these."""


class WeightFormat(NamedTuple):
    """How a matrix is stored."""

    bits: float
    """Of an element, with its share of the scales."""
    kernels: str


FORMATS: Final[Mapping[str, WeightFormat]] = MappingProxyType(
    {
        NONE: WeightFormat(16, PLAIN),
        "fp8": WeightFormat(8, FP8),
        "fp8_rows": WeightFormat(8, FP8),
        "fp8_blocks": WeightFormat(8, FP8),
        "mxfp4": WeightFormat(4.25, WORDS),
        "mxfp4_fp8": WeightFormat(4.25, QUADS),
        "nvfp4": WeightFormat(4.5, WORDS),
        "int4_32": WeightFormat(4.5, WORDS),
        "int4_64": WeightFormat(4.25, WORDS),
        "int4_128": WeightFormat(4.125, WORDS),
        INT8: WeightFormat(8, WORDS),
    }
)
"""By name."""
_ALIKE: Final = 1.1
"""Formats that the same kernels read take about the same time when the bits of one are up to so many of the other's."""

_NAMES: Final[Mapping[QuantAlgo, str]] = MappingProxyType(
    {
        QuantAlgo.NONE: NONE,
        QuantAlgo.FP8: "fp8",
        QuantAlgo.FP8_PER_CHANNEL_PER_TOKEN: "fp8_rows",
        QuantAlgo.FP8_BLOCK_SCALES: "fp8_blocks",
        QuantAlgo.W4A16_MXFP4: "mxfp4",
        QuantAlgo.W4A8_MXFP4_FP8: "mxfp4_fp8",
        QuantAlgo.NVFP4: "nvfp4",
        QuantAlgo.W4A16_NVFP4: "nvfp4",
        QuantAlgo.W8A16: INT8,
    }
)
_INT4: Final = (QuantAlgo.W4A16, QuantAlgo.W4A16_AWQ, QuantAlgo.W4A16_GPTQ)


def alike(one: str, other: str) -> bool:
    """Whether tiles that are fast with one format are a guide for the other."""
    a, b = FORMATS[one], FORMATS[other]
    return a.kernels == b.kernels and max(a.bits, b.bits) <= _ALIKE * min(a.bits, b.bits)


def format_name(quant: QuantAlgo, group_size: int | None) -> str | None:
    """The name in :data:`FORMATS`; ``None`` when no kernel reads it. `group_size` is that of the problem."""
    if quant not in _INT4:
        return _NAMES.get(quant)
    group = group_size or DEFAULT_GROUP_SIZE.get(quant) or BLOCK
    name = f"int4_{BLOCK if group % BLOCK == 0 else group}"
    return name if name in FORMATS else None
