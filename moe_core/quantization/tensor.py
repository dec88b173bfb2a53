"""A quantized matrix, or one per expert, with the interface of a tensor where the code that holds weights needs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Self, TypeAlias

import torch

from moe_core.quantization.blocks import num_blocks, spread
from moe_core.quantization.elements import MIDDLE, decode
from moe_core.quantization.formats import Format


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """A matrix ``[N, K]`` as codes and scales, or ``[E, N, K]``, one per expert; every part has as many dimensions.

    ``w[n, k] = (code[n, k] - zero) * scale[n // rows, k // columns] * global_scale``
    """

    format: Format
    data: torch.Tensor
    """Codes: ``[..., N, K]``, or uint8 ``[..., N, K / 2]`` where two share a byte."""
    scale: torch.Tensor
    """A multiplier per block, ``[..., ceil(N / rows), ceil(K / columns)]``, linear."""
    global_scale: torch.Tensor | None = None
    """float32 ``[..., 1, 1]``, of two-level formats: a multiplier (NVFP4's ``weight_scale_2``)."""
    zero: torch.Tensor | None = None
    """uint8, shaped as `scale`: the codes of zero, of four-bit integers; ``None``: 8."""

    @property
    def shape(self) -> torch.Size:
        """Shape of the matrix that it stands for."""
        return torch.Size((*self.data.shape[:-1], self.data.shape[-1] * self.format.element.codes_per_byte))

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, expert: int) -> Self:
        return self.map(lambda part: part[expert])

    def tensors(self) -> dict[str, torch.Tensor]:
        """The parts that are there, by field name."""
        return {f.name: value for f in fields(self)[1:] if (value := getattr(self, f.name)) is not None}

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        """A copy with `function` applied to every part."""
        return type(self)(self.format, **{name: function(part) for name, part in self.tensors().items()})

    def narrow(self, dim: int, start: int, length: int) -> Self:
        """``[start, start + length)`` of dimension `dim`; raises ``ValueError`` if that cuts a block."""
        axis = dim - self.data.ndim
        if axis < -2:
            return self.map(lambda part: part.narrow(dim, start, length))
        codes = self.format.element.codes_per_byte if axis == -1 else 1
        width = self.format.block[axis]
        size, end, unit = self.shape[dim], start + length, math.lcm(codes, width or 1)
        for edge in (start, end):
            if edge % unit and edge != size:
                raise ValueError(
                    f"a cut at {edge} of {size} parts what belongs together in {self.format}: needed a multiple of "
                    f"{unit}; choose a tp_size that divides the groups, or split experts instead"
                )

        def cut(part: torch.Tensor, per: int | None) -> torch.Tensor:
            if per is None:
                return part
            first, last = num_blocks(start, per), num_blocks(end, per)
            return part.narrow(dim, first, last - first)

        zero = None if self.zero is None else cut(self.zero, width)
        return type(self)(self.format, cut(self.data, codes), cut(self.scale, width), self.global_scale, zero)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The matrix, ``[..., N, K]``: computed in float32, rounded to `dtype` once."""
        rows, columns = self.shape[-2:]
        values = decode(self.format.element, self.data)
        if self.zero is not None:
            values = values + (MIDDLE - spread(self.zero.float(), self.format.block, rows, columns))
        values = values * spread(self.scale.float(), self.format.block, rows, columns)
        if self.global_scale is not None:
            values = values * self.global_scale.float()
        return values.to(dtype)

    def misfits(self, name: str, format_: Format, shape: Sequence[int]) -> list[str]:
        """Everything that makes `name` no matrix of `shape` in `format_`, as ``name.part: found …, needed …``."""
        if self.format != format_:
            return [f"{name}: found {self.format}, needed {format_}"]
        needed, found = format_.parts(shape), self.tensors()
        lines = [f"{name}.{part}: {line}" for part in needed for line in needed[part].misfits(found.get(part))]
        return lines + [f"{name}.{part}: found a tensor, needed nothing" for part in found if part not in needed]


Matrix: TypeAlias = torch.Tensor | QuantizedTensor
"""A matrix, or one per expert: plain or quantized."""


def dequantized(matrix: Matrix, dtype: torch.dtype) -> torch.Tensor:
    """The values of `matrix` in `dtype`; a plain one of that type is not copied."""
    return matrix.dequantize(dtype) if isinstance(matrix, QuantizedTensor) else matrix.to(dtype)


def plain(matrix: Matrix) -> torch.Tensor:
    """`matrix`, for code that takes no quantized one; raises ``TypeError`` if it is."""
    if isinstance(matrix, QuantizedTensor):
        raise TypeError(f"found {matrix.format}, needed a matrix that is not quantized")
    return matrix
