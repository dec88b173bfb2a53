"""Blocks of a matrix that share a scale; the last row and column of blocks may be ragged."""

from __future__ import annotations

from typing import Final, TypeAlias

import torch
from torch.nn import functional as F

Block: TypeAlias = tuple[int | None, int | None]
"""Rows and columns of one block; ``None``: all of them."""
Offset: TypeAlias = tuple[int, int]
"""Rows and columns of the first block that are not there, where a share of a matrix begins within a block."""
WHOLE: Final[Offset] = (0, 0)
LEAST_AMAX: Final = 1e-10
"""Magnitudes below it count as this: a block of zeros gets a scale that can be divided by."""


def num_blocks(size: int, width: int | None) -> int:
    """How many blocks of `width` cover `size`."""
    return 1 if width is None else -(-size // width)


def in_blocks(x: torch.Tensor, block: Block) -> torch.Tensor:
    """`x` ``[..., N, K]``, padded with zeros, as ``[..., blocks of rows, blocks of columns, elements of a block]``."""
    (rows, num_rows), (columns, num_columns) = (_split(x.shape[dim], block[dim]) for dim in (-2, -1))
    padded = F.pad(x, (0, num_columns * columns - x.shape[-1], 0, num_rows * rows - x.shape[-2]))
    tiles = padded.reshape(*x.shape[:-2], num_rows, rows, num_columns, columns)
    return tiles.transpose(-3, -2).flatten(-2)


def amax(x: torch.Tensor, block: Block) -> torch.Tensor:
    """The largest magnitude of each block."""
    return in_blocks(x.abs(), block).amax(dim=-1)


def float_scale(x: torch.Tensor, block: Block, largest: float) -> torch.Tensor:
    """``amax / largest`` of each block, never zero."""
    return quotient(amax(x, block).clamp(min=LEAST_AMAX), largest)


def quotient(x: torch.Tensor, divisor: float) -> torch.Tensor:
    """``x / divisor``, rounded once on every device: of a plain number CUDA takes the reciprocal, and rounds that."""
    return x / x.new_full((), divisor)


def spread(scale: torch.Tensor, block: Block, rows: int, columns: int, offset: Offset = WHOLE) -> torch.Tensor:
    """`scale` per block, repeated over ``[..., rows, columns]``; one that all share is left to broadcast."""
    for dim, size in ((-2, rows), (-1, columns)):
        width = block[dim]
        if width not in (None, 1):
            scale = scale.repeat_interleave(width, dim=dim).narrow(dim, offset[dim], size)
    return scale


def _split(size: int, width: int | None) -> tuple[int, int]:
    """Width and number of the blocks that cover `size`."""
    return (max(size, 1), 1) if width is None else (width, num_blocks(size, width))
