"""Formats by name: what the weights of a quantization algorithm are stored as, and what its kernels make of inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

import torch

from moe_core.contract.memory import DEFAULT_GROUP_SIZE
from moe_core.contract.vocabulary import QuantAlgo, Word
from moe_core.quantization.blocks import WHOLE, Block, Offset, num_blocks
from moe_core.quantization.elements import Element


class ScaleType(Word):
    """What the scale of a block is."""

    FLOAT = "float"
    """Any float type of torch."""
    E4M3 = "e4m3"
    """Never negative; a float32 scale per matrix is beside it."""
    UE8M0 = "ue8m0"
    """A power of two: byte e is ``2 ** (e - 127)``, 255 is NaN."""

    @property
    def storage(self) -> torch.dtype | None:
        """Element type of the tensor that holds the scales; ``None``: any float."""
        return _SCALE_STORAGE.get(self)


_SCALE_STORAGE: Final[Mapping[ScaleType, torch.dtype]] = MappingProxyType(
    {ScaleType.E4M3: torch.float8_e4m3fn, ScaleType.UE8M0: torch.float8_e8m0fnu}
)


class Part(NamedTuple):
    """What a tensor of a quantized matrix has to be."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None
    """``None``: any float."""
    is_optional: bool = False

    def misfits(self, tensor: torch.Tensor | None) -> list[str]:
        """How `tensor` differs, as ``found …, needed …``."""
        if tensor is None:
            return [] if self.is_optional else [f"found nothing, needed {list(self.shape)}"]
        lines = []
        if tensor.shape != self.shape:
            lines.append(f"found {list(tensor.shape)}, needed {list(self.shape)}")
        if not (tensor.dtype.is_floating_point if self.dtype is None else tensor.dtype is self.dtype):
            lines.append(f"found {tensor.dtype}, needed {self.dtype or 'a float type'}")
        return lines


@dataclass(frozen=True)
class Format:
    """How a matrix ``[..., N, K]`` is stored: codes, and scales that blocks of it share."""

    element: Element
    scale: ScaleType
    block: Block
    """Rows and columns that share a scale; ``None``: all of them."""

    def __str__(self) -> str:
        rows, columns = ("all" if width is None else width for width in self.block)
        return f"{self.element} with {self.scale} scales per {rows} x {columns}"

    @property
    def is_two_level(self) -> bool:
        """Whether a float32 scale per matrix multiplies those of the blocks."""
        return self.scale is ScaleType.E4M3

    def offset(self, row: int, column: int) -> Offset:
        """That of a share which begins there."""
        rows, columns = (start % (width or 1) for start, width in zip((row, column), self.block, strict=True))
        return rows, columns

    def parts(self, shape: Sequence[int], offset: Offset = WHOLE) -> dict[str, Part]:
        """The tensors that hold a matrix of `shape` ``[..., N, K]``, by name."""
        *outer, rows, columns = shape
        data = (*outer, rows, -(-columns // self.element.codes_per_byte))
        blocks = (
            num_blocks(first + size, width)
            for first, size, width in zip(offset, (rows, columns), self.block, strict=True)
        )
        scale = (*outer, *blocks)
        parts = {"data": Part(data, self.element.storage), "scale": Part(scale, self.scale.storage)}
        if self.is_two_level:
            parts["global_scale"] = Part((*outer, 1, 1), torch.float32)
        if self.element is Element.INT4:
            parts["zero"] = Part(scale, torch.uint8, is_optional=True)
        return parts


FP8 = Format(Element.E4M3, ScaleType.FLOAT, (None, None))
FP8_ROWS = Format(Element.E4M3, ScaleType.FLOAT, (1, None))
FP8_BLOCKS = Format(Element.E4M3, ScaleType.FLOAT, (128, 128))
FP8_GROUPS = Format(Element.E4M3, ScaleType.FLOAT, (1, 128))
NVFP4 = Format(Element.E2M1, ScaleType.E4M3, (1, 16))
NVFP4_WIDE = Format(Element.E2M1, ScaleType.E4M3, (1, 32))
MXFP4 = Format(Element.E2M1, ScaleType.UE8M0, (1, 32))
MXFP8 = Format(Element.E4M3, ScaleType.UE8M0, (1, 32))
INT8_ROWS = Format(Element.INT8, ScaleType.FLOAT, (1, None))
INT4_ROWS = Format(Element.INT4, ScaleType.FLOAT, (1, None))

INT4_GROUPED: Final = frozenset({QuantAlgo.W4A16_AWQ, QuantAlgo.W4A16_GPTQ, QuantAlgo.W4A8_AWQ, QuantAlgo.W4A8_CUSTOM})
"""Four-bit integers in groups along K, of a size that the model chooses."""

_WEIGHTS: Final[Mapping[QuantAlgo, Format]] = MappingProxyType(
    {
        QuantAlgo.FP8: FP8,
        QuantAlgo.FP8_PER_CHANNEL_PER_TOKEN: FP8_ROWS,
        QuantAlgo.FP8_BLOCK_SCALES: FP8_BLOCKS,
        QuantAlgo.NVFP4: NVFP4,
        QuantAlgo.W4A16_NVFP4: NVFP4,
        QuantAlgo.W4A8_NVFP4_FP8: NVFP4_WIDE,
        QuantAlgo.W4A16_MXFP4: MXFP4,
        QuantAlgo.W4A8_MXFP4_FP8: MXFP4,
        QuantAlgo.W4A8_MXFP4_MXFP8: MXFP4,
        QuantAlgo.MXFP8: MXFP8,
        QuantAlgo.W8A8_SQ: INT8_ROWS,
        QuantAlgo.W8A16: INT8_ROWS,
        QuantAlgo.W4A16: INT4_ROWS,
    }
)
_INPUTS: Final[Mapping[QuantAlgo, Format]] = MappingProxyType(
    {
        QuantAlgo.FP8: FP8,
        QuantAlgo.FP8_PER_CHANNEL_PER_TOKEN: FP8_ROWS,
        QuantAlgo.FP8_BLOCK_SCALES: FP8_GROUPS,
        QuantAlgo.NVFP4: NVFP4,
        QuantAlgo.W4A8_NVFP4_FP8: FP8,
        QuantAlgo.W4A8_MXFP4_FP8: FP8,
        QuantAlgo.W4A8_MXFP4_MXFP8: MXFP8,
        QuantAlgo.MXFP8: MXFP8,
        QuantAlgo.W8A8_SQ: INT8_ROWS,
        QuantAlgo.W4A8_AWQ: FP8,
        QuantAlgo.W4A8_CUSTOM: FP8,
    }
)


def weight_format(quant: QuantAlgo, group_size: int | None = None) -> Format | None:
    """What the matrices of an expert are stored as; ``None`` when they are not quantized.

    `group_size` counts elements along K that share a scale, by default the customary number. Raises ``ValueError``
    when `quant` has groups of another size.
    """
    if quant is QuantAlgo.NONE:
        return None
    customary = DEFAULT_GROUP_SIZE.get(quant)
    if quant in INT4_GROUPED:
        return Format(Element.INT4, ScaleType.FLOAT, (1, group_size or customary))
    if customary is not None and group_size not in (None, customary):
        raise ValueError(f"{quant} has groups of {customary}: found quant_group_size {group_size}")
    return _WEIGHTS[quant]


def input_format(quant: QuantAlgo) -> Format | None:
    """What kernels of `quant` make of the input of a projection; ``None`` when they take it as it is."""
    return _INPUTS.get(quant)
