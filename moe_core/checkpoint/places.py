"""Where a part of a projection lies in a checkpoint, and how a share of it is read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, TypeVar

import torch

from moe_core.checkpoint.files import OpenFiles
from moe_core.checkpoint.schemes import EXPERT, Rows
from moe_core.checkpoint.storages import Part
from moe_core.quantization.blocks import num_blocks

Span: TypeAlias = tuple[int, int]
"""Start and end of a share of a dimension."""
Extent = TypeVar("Extent")
_STRIDE = {Rows.EVEN: 0, Rows.ODD: 1}


@dataclass(frozen=True)
class Place:
    """One tensor per expert, or one for all of them. N rows and K columns are those of the matrix it is a part of."""

    template: str
    """Its key, with ``{e}`` where the expert stands."""
    part: Part
    rows: Rows
    size: tuple[int, int]
    """N, K."""
    block: tuple[int | None, int | None]
    """Rows and columns of the matrix that share an element before packing; ``None``: all."""
    num_experts: int
    codes: int = 1
    """Columns that share a decoded byte."""
    is_turned: bool = False
    """Stored with K first, for another reason than its part's."""

    @property
    def is_stacked(self) -> bool:
        """Whether one tensor holds every expert."""
        return EXPERT not in self.template

    def key(self, expert: int) -> str:
        """The key of an expert's tensor."""
        return self.template.replace(EXPERT, str(expert))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape that the stored tensor needs to have; dimensions of one element may be missing or elsewhere."""
        rows, columns = (num_blocks(total, unit) for total, unit in zip(self._totals, self._units, strict=True))
        return self._arranged(self.num_experts, rows, columns, self.part.inner or 1)

    @property
    def needed(self) -> list[int]:
        """The shape for people, without what may be missing."""
        return [n for n in self.shape if n != 1] or [1]

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of `shape` can be it."""
        shared = self._units == (None, None) and math.prod(shape) == 1
        return shared or [n for n in shape if n != 1] == [n for n in self.shape if n != 1]

    def uncuttable(self, columns: Span) -> Iterator[str]:
        """Why the share cannot be cut out, as ``found …, needed …``."""
        if self.rows in _STRIDE and self._units[0] not in (None, 1):
            yield f"found interleaved rows in blocks of {self._units[0]}, needed a scale per row"
        unit = self._units[0]
        if self.rows is Rows.SECOND_HALF and unit is not None and self.size[0] % unit:
            yield (
                f"found a second half that begins at {self.size[0]} of {self._totals[0]}, needed a multiple of {unit}, "
                "which are stored together"
            )
        for edge in columns:
            if edge % self.codes and edge != self.size[1]:
                yield f"found a cut at {edge} of {self.size[1]}, needed an even number: two codes share a byte"

    def read(self, files: OpenFiles, expert: int, rows: Span, columns: Span) -> torch.Tensor:
        """What a share of an expert lies in, ``[rows, columns]`` in units of what shares an element, decoded.

        It begins with the first of what is stored together, and :meth:`ahead` of the share.
        """
        row_unit, column_unit = self._units
        spans = self._arranged(
            (expert, expert + 1),
            _in_units(self._stored_rows(rows), row_unit),
            _in_units(columns, column_unit),
            (0, self.part.inner or 1),
        )
        stored = self._read(files, self.key(expert), spans)
        if self.is_stacked:
            stored = stored[0]
        if self._is_transposed:
            stored = stored.transpose(0, 1)
        if self.part.inner is not None:
            stored = stored.flatten(1)
        if self.rows in _STRIDE and self._units[0] is not None:
            # Gate and up lie between each other, so each reads both; the second time they come from the page cache.
            stored = stored[_STRIDE[self.rows] :: 2]
        return self.part.decode(stored)

    def ahead(self, rows: Span, columns: Span) -> tuple[int, int]:
        """Decoded rows and columns that :meth:`read` gives before those of the share."""
        decoded = (self.block[0], None if self.block[1] is None else self.block[1] * self.codes)
        starts = (self._stored_rows(rows)[0] if self.rows not in _STRIDE else rows[0], columns[0])
        found = [
            0 if stored is None or own is None else start // own - start // stored * stored // own
            for start, stored, own in zip(starts, self._units, decoded, strict=True)
        ]
        return found[0], found[1]

    @cached_property
    def _units(self) -> tuple[int | None, int | None]:
        """Rows and columns of the matrix per stored element."""
        rows, columns = (
            None if shared is None else shared * packed
            for shared, packed in zip(self.block, self.part.packed, strict=True)
        )
        return rows, columns

    @property
    def _totals(self) -> tuple[int, int]:
        """Rows and columns of the matrix that is stored: gate and up may be in one."""
        return self.size[0] * (1 if self.rows is Rows.ALL else 2), self.size[1]

    @property
    def _is_transposed(self) -> bool:
        return self.part.transposed != self.is_turned

    def _stored_rows(self, rows: Span) -> Span:
        start, end = rows
        match self.rows:
            case Rows.SECOND_HALF:
                return start + self.size[0], end + self.size[0]
            case Rows.EVEN | Rows.ODD:
                return 2 * start, 2 * end
        return start, end

    def _arranged(self, experts: Extent, rows: Extent, columns: Extent, inner: Extent) -> tuple[Extent, ...]:
        """One value per stored dimension."""
        matrix = (columns, rows) if self._is_transposed else (rows, columns)
        return (*((experts,) if self.is_stacked else ()), *matrix, *((inner,) if self.part.inner else ()))

    def _read(self, files: OpenFiles, key: str, spans: Sequence[Span]) -> torch.Tensor:
        found = files.shape(key)
        lengths = [end - start for start, end in spans]
        if math.prod(found) == 1:
            return files.read(key).reshape(lengths)
        cut = iter(span for span, size in zip(spans, self.shape, strict=True) if size != 1)
        return files.read(key, tuple(slice(*next(cut)) if n != 1 else slice(None) for n in found)).reshape(lengths)


def _in_units(span: Span, unit: int | None) -> Span:
    return (0, 1) if unit is None else (span[0] // unit, num_blocks(span[1], unit))
