"""Tensors of one row per token as bytes side by side, so that one collective moves them all."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch


class RowBytes:
    """How the tensors of a batch lie next to each other in a row of bytes. ``None`` among them stays ``None``."""

    def __init__(self, tensors: Sequence[torch.Tensor | None]) -> None:
        self._forms = [None if t is None else (t.dtype, tuple(t.shape[1:])) for t in tensors]
        self._widths = [0 if f is None else prod(f[1]) * f[0].itemsize for f in self._forms]

    def pack(self, tensors: Sequence[torch.Tensor | None], *, ids_at: int | None = None) -> torch.Tensor:
        """uint8 ``[T + 1, bytes]``: the rows, and a row of nobody: zeros, with -1 in tensor `ids_at`."""
        given = [t for t in tensors if t is not None]
        num_rows = given[0].shape[0]
        packed = torch.empty(num_rows + 1, sum(self._widths), dtype=torch.uint8, device=given[0].device)
        columns = torch.split(packed, self._widths, dim=1)
        for tensor, part in zip(tensors, columns, strict=True):
            if tensor is not None:
                part[:num_rows] = as_bytes(tensor)
        packed[num_rows:] = 0
        if ids_at is not None:
            columns[ids_at][num_rows:] = 255
        return packed

    def unpack(self, rows_NB: torch.Tensor) -> list[torch.Tensor | None]:
        """The tensors of rows that :meth:`pack` made, in any order and number."""
        columns = torch.split(rows_NB, self._widths, dim=1)
        return [
            None if form is None else from_bytes(part, form[0]).view(-1, *form[1])
            for part, form in zip(columns, self._forms, strict=True)
        ]


def as_bytes(rows: torch.Tensor) -> torch.Tensor:
    """uint8 ``[T, bytes of a row]``: collectives know few one-byte types, and bytes travel unchanged under any name."""
    width = prod(rows.shape[1:]) * rows.element_size()
    # Flat in between: where a dimension is 1, what counts as contiguous may have any stride there.
    return rows.contiguous().flatten().view(torch.uint8).view(rows.shape[0], width)


def from_bytes(columns: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Some columns of rows of bytes, copied out: where they lie, wider elements would not be aligned."""
    return columns.clone(memory_format=torch.contiguous_format).view(dtype)
