"""A quantized matrix, or one per expert, with the interface of a tensor where the code that holds weights needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self, TypeAlias

import torch

from moe_core.quantization.blocks import WHOLE, Offset, num_blocks, spread
from moe_core.quantization.elements import MIDDLE, decode
from moe_core.quantization.formats import Format


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """A matrix ``[N, K]`` as codes and scales, or ``[E, N, K]``, one per expert; every part has as many dimensions.

    ``w[n, k] = (code[n, k] - zero) * scale[(n + offset[0]) // rows, (k + offset[1]) // columns] * global_scale``
    """

    format: Format
    data: torch.Tensor
    """Codes: ``[..., N, K]``, or uint8 ``[..., N, K / 2]`` where two share a byte."""
    scale: torch.Tensor
    """A multiplier per block, ``[..., ceil((offset[0] + N) / rows), ceil((offset[1] + K) / columns)]``, linear."""
    global_scale: torch.Tensor | None = None
    """float32 ``[..., 1, 1]``, of two-level formats: a multiplier (NVFP4's ``weight_scale_2``)."""
    zero: torch.Tensor | None = None
    """uint8, shaped as `scale`: the codes of zero, of four-bit integers; ``None``: 8."""
    offset: Offset = WHOLE
    """Rows and columns of the first block that are not here, of a share that begins within one."""

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
        values = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {name: value for name, value in values if isinstance(value, torch.Tensor)}

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        """A copy with `function` applied to every part."""
        parts: dict[str, Any] = {name: function(part) for name, part in self.tensors().items()}
        return replace(self, **parts)

    def narrow(self, dim: int, start: int, length: int) -> Self:
        """``[start, start + length)`` of dimension `dim`, with the scales of all blocks that it lies in.

        Raises ``ValueError`` if that cuts a byte.
        """
        axis = dim - self.data.ndim
        if axis < -2:
            return self.map(lambda part: part.narrow(dim, start, length))
        codes = self.format.element.codes_per_byte if axis == -1 else 1
        end = start + length
        for edge in (start, end):
            if edge % codes:
                raise ValueError(
                    f"a cut at {edge} of {self.shape[dim]} parts two codes that share a byte in {self.format}; "
                    "needed an even number"
                )

        def cut(part: torch.Tensor, per: int | None, first: int = 0) -> torch.Tensor:
            if per is None:
                return part
            block = (first + start) // per
            return part.narrow(dim, block, num_blocks(first + end, per) - block)

        width, first = self.format.block[axis], self.offset[axis]
        offset = list(self.offset)
        offset[axis] = (first + start) % (width or 1)
        return replace(
            self,
            data=cut(self.data, codes),
            scale=cut(self.scale, width, first),
            zero=None if self.zero is None else cut(self.zero, width, first),
            offset=(offset[0], offset[1]),
        )

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The matrix, ``[..., N, K]``: computed in float32, rounded to `dtype` once."""
        rows, columns = self.shape[-2:]
        values = decode(self.format.element, self.data)
        if self.zero is not None:
            values = values + (MIDDLE - spread(self.zero.float(), self.format.block, rows, columns, self.offset))
        values = values * spread(self.scale.float(), self.format.block, rows, columns, self.offset)
        if self.global_scale is not None:
            values = values * self.global_scale.float()
        return values.to(dtype)

    def misfits(self, name: str, format_: Format, shape: Sequence[int]) -> list[str]:
        """Everything that makes `name` no matrix of `shape` in `format_`, as ``name.part: found …, needed …``."""
        if self.format != format_:
            return [f"{name}: found {self.format}, needed {format_}"]
        needed, found = format_.parts(shape, self.offset), self.tensors()
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
