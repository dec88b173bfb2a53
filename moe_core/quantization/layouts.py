"""Orders in which kernels want block scales: linear, or in tiles as tensor cores read them.

A token exchange carries linear scales; tiles are made on the rank that computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import torch
from torch.nn import functional as F

from moe_core.contract.vocabulary import Word

COLUMNS: Final = 4
"""Columns of a tile."""


class ScaleLayout(Word):
    """How the one-byte scales ``[M, blocks of K]`` of a matrix lie in memory."""

    LINEAR = "linear"
    """Row after row."""
    TILES_128X4 = "128x4"
    """Tiles of 128 rows x 4 columns: rows 0, 32, 64, 96, then 1, 33 …, four columns of each."""
    TILES_8X4 = "8x4"
    """Tiles of 8 rows x 4 columns, row after row."""


# Rows of a tile as (slow, fast) factors: memory holds the slow one inside.
_TILE_ROWS: Final[Mapping[ScaleLayout, tuple[int, int]]] = MappingProxyType(
    {ScaleLayout.TILES_128X4: (4, 32), ScaleLayout.TILES_8X4: (1, 8)}
)


def swizzle(scale: torch.Tensor, layout: ScaleLayout) -> torch.Tensor:
    """Linear one-byte `scale` ``[..., M, S]`` in `layout`, flat; tiles are filled up with zeros."""
    if layout is ScaleLayout.LINEAR:
        return scale.flatten(-2)
    rows, columns = scale.shape[-2:]
    row_tiles, slow, fast, column_tiles = _tiles(layout, rows, columns)
    whole = row_tiles * slow * fast, column_tiles * COLUMNS
    padded = F.pad(scale.view(torch.uint8), (0, whole[1] - columns, 0, whole[0] - rows))
    tiles = padded.reshape(*scale.shape[:-2], row_tiles, slow, fast, column_tiles, COLUMNS)
    return tiles.transpose(-4, -2).flatten(-5).view(scale.dtype)


def unswizzle(scale: torch.Tensor, layout: ScaleLayout, rows: int, columns: int) -> torch.Tensor:
    """Linear scales ``[..., rows, columns]`` of flat ones in `layout`."""
    if layout is ScaleLayout.LINEAR:
        return scale.reshape(*scale.shape[:-1], rows, columns)
    row_tiles, slow, fast, column_tiles = _tiles(layout, rows, columns)
    tiles = scale.reshape(*scale.shape[:-1], row_tiles, column_tiles, fast, slow, COLUMNS)
    padded = tiles.transpose(-4, -2).flatten(-5, -3).flatten(-2)
    return padded[..., :rows, :columns]


def _tiles(layout: ScaleLayout, rows: int, columns: int) -> tuple[int, int, int, int]:
    """Tiles over the rows, the two factors of a tile's rows, tiles over the columns."""
    slow, fast = _TILE_ROWS[layout]
    return -(-rows // (slow * fast)), slow, fast, -(-columns // COLUMNS)
