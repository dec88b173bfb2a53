"""Shares that begin within a block of scales, for kernels whose blocks begin with the first neuron."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import torch

from moe_core.quantization import Element, QuantizedTensor
from moe_core.quantization.elements import MIDDLE
from moe_core.weights import ExpertWeights

PAIR: Final = 0x11
"""Times a four-bit code: a byte with that code twice."""


def from_whole_blocks(weights: ExpertWeights) -> ExpertWeights:
    """`weights` in whole blocks: before a share that begins within one, neurons of nothing stand for the others' there.

    Their weights and biases are zero, and so are the columns of w2 that would multiply what they give. `weights` itself
    is returned where nothing is missing. Raises ``ValueError`` when matrices do not begin at the same neuron.
    """
    matrices = {name: part for name, part in weights.given().items() if isinstance(part, QuantizedTensor)}
    begins = {name: part.offset[1 if name == "w2_EHI" else 0] for name, part in matrices.items()}
    front = max(begins.values(), default=0)
    if not front:
        return weights
    if uneven := [name for name, part in matrices.items() if begins[name] != front and _has_blocks(name, part)]:
        raise ValueError(f"found blocks that begin at {begins}, needed {', '.join(uneven)} to begin with the others")
    changed: dict[str, Any] = {
        name: _columns_after(part, front) if name == "w2_EHI" else _rows_after(part, front)
        for name, part in matrices.items()
    }
    biases = {"b1_EI": weights.b1_EI, "b3_EI": weights.b3_EI}
    changed |= {name: _after(bias, front, -1, 0) for name, bias in biases.items() if bias is not None}
    return replace(weights, **changed)


def _has_blocks(name: str, matrix: QuantizedTensor) -> bool:
    """Whether neurons of `matrix` share scales by blocks."""
    return matrix.format.block[1 if name == "w2_EHI" else 0] not in (None, 1)


def _rows_after(matrix: QuantizedTensor, front: int) -> QuantizedTensor:
    is_int4 = matrix.format.element is Element.INT4
    parts: dict[str, Any] = {"data": _after(matrix.data, front, -2, MIDDLE * PAIR if is_int4 else 0)}
    if matrix.format.block[0] == 1:
        parts["scale"] = _after(matrix.scale, front, -2)
        if matrix.zero is not None:
            parts["zero"] = _after(matrix.zero, front, -2, MIDDLE)
    return replace(matrix, **parts, offset=(0, matrix.offset[1]))


def _columns_after(matrix: QuantizedTensor, front: int) -> QuantizedTensor:
    nothing: int | torch.Tensor = 0
    if matrix.format.element is Element.INT4:
        # They share the zero point of the first columns that are here.
        nothing = PAIR * (MIDDLE if matrix.zero is None else matrix.zero[..., :1])
    data = _after(matrix.data, front // matrix.format.element.codes_per_byte, -1, nothing)
    return replace(matrix, data=data, offset=(matrix.offset[0], 0))


def _after(part: torch.Tensor, count: int, dim: int, value: int | torch.Tensor | None = None) -> torch.Tensor:
    """`part` after `count` times `value` along `dim`; by default, its own first element."""
    # As bytes: not every version of torch joins float8.
    joined = part.view(torch.uint8) if part.element_size() == 1 else part
    first = joined.narrow(dim, 0, 1)
    if value is not None:
        first = first.new_tensor(value).expand_as(first) if isinstance(value, int) else value
    shape = list(first.shape)
    shape[dim] = count
    return torch.cat([first.expand(shape), joined], dim=dim).view(part.dtype)
