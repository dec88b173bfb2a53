"""Which rows belong to which expert, made on the device: a stable counting sort with a list of row tiles.

Nothing depends on the data on the host's side: buffers and grids have the size of the worst case, and kernels stop at
``num_tiles``, which they read on the device.
"""

# Kernels are functions of tiles, for which Python has no types; their names are those of the formulas.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from moe_plugins.triton_moe.launch import launch

ALONE_PAIRS: Final = 512
ALONE_BINS: Final = 256
"""Up to so many pairs and experts, one program per expert that counts for itself is faster than two kernels."""
SMALL_BLOCK: Final = 128
SMALL_PAIRS: Final = 8192
"""Up to so many pairs, blocks are small, and compare their pairs with each other. Every block reads the counts of all
blocks, so for more pairs they are larger; those sort."""
LARGE_BLOCK: Final = 1024


class ExpertMap(NamedTuple):
    """P = T * K pairs sorted by local expert, all int32 on the device; foreign pairs have no row."""

    counts: torch.Tensor
    """``[L]``: pairs of each local expert."""
    offsets: torch.Tensor
    """``[L]``: first row of each local expert, a multiple of `align`."""
    pair_of_row: torch.Tensor
    """``[R]``: ``token * K + k``, or -1 on a row that only fills up to `align`; undefined past the last expert."""
    row_of_pair: torch.Tensor
    """``[P]``: the row of each pair, or -1 where its expert is not here."""
    tile_expert: torch.Tensor
    """``[N]``: local expert of each tile; undefined from `num_tiles` on, as are the next two."""
    tile_row: torch.Tensor
    """``[N]``: first row of each tile."""
    tile_rows: torch.Tensor
    """``[N]``: rows of each tile that are pairs, 1 to `tile`. An expert's rows are shared evenly, in multiples of
    `align`, where `tile` is one."""
    num_tiles: torch.Tensor
    """``[1]``"""
    turns: torch.Tensor
    """``[2]``: zeros, for kernels whose programs draw their tiles; they leave zeros."""

    @property
    def max_rows(self) -> int:
        """R: rows in the worst case."""
        return self.pair_of_row.numel()

    @property
    def max_tiles(self) -> int:
        """N: tiles in the worst case."""
        return self.tile_expert.numel()


def map_bounds(num_pairs: int, num_local: int, tile: int, align: int) -> tuple[int, int]:
    """Rows and tiles in the worst case of routing."""
    used = min(num_pairs, num_local)
    rows = num_pairs + used * (align - 1)
    return -(-rows // align) * align, num_pairs // tile + used


def map_experts(
    ids_TK: torch.Tensor, slot_start: int, num_local: int, *, tile: int, align: int = 1, pdl: bool = False
) -> ExpertMap:
    """The map of global slot ids int32 ``[T, K]``, T > 0, onto the local slots ``slot_start ...``, in tiles of `tile`
    rows. One kernel for few pairs, else two."""
    num_pairs = ids_TK.numel()
    max_rows, max_tiles = map_bounds(num_pairs, num_local, tile, align)
    bins = max(triton.next_power_of_2(num_local), 16)
    alone = num_pairs <= ALONE_PAIRS and bins <= ALONE_BINS
    block = SMALL_BLOCK if num_pairs <= SMALL_PAIRS else LARGE_BLOCK
    num_blocks = 0 if alone else triton.cdiv(num_pairs, block)
    # 16-byte pieces of one buffer: one allocation is cheaper than ten.
    sizes = (num_local, num_local, max_rows, num_pairs, max_tiles, max_tiles, max_tiles, 1, 2)
    padded = [*(-(-size // 4) * 4 for size in sizes), num_blocks * bins]
    buffer = torch.empty(sum(padded), dtype=torch.int32, device=ids_TK.device)
    *pieces, block_counts = buffer.split(padded)
    found = ExpertMap(*(piece[:size] for piece, size in zip(pieces, sizes, strict=True)))
    meta = {"L": num_local, "BINS": bins, "ALIGN": align, "PDL": pdl}
    if alone:
        block = max(triton.next_power_of_2(num_pairs), 128)
        launch(
            _place_expert, (num_local,), (ids_TK, *found, num_pairs, slot_start),
            {**meta, "TILE": tile, "BLOCK": block}, num_warps=4, pdl=pdl,
        )  # fmt: skip
        return found
    num_warps = 4 if block == SMALL_BLOCK else 8
    launch(
        _count_blocks, (num_blocks,), (ids_TK, block_counts, found.pair_of_row, num_pairs, slot_start, max_rows),
        {**meta, "BLOCK": block}, num_warps=4, pdl=pdl,
    )  # fmt: skip
    launch(
        _place_blocks, (num_blocks,), (ids_TK, block_counts, *found, num_pairs, slot_start),
        {**meta, "TILE": tile, "BLOCK": block, "COMPARE": block == SMALL_BLOCK}, num_warps=num_warps, pdl=pdl,
    )  # fmt: skip
    return found


@triton.jit
def _local(ids, pair, num_pairs, slot_start, L: tl.constexpr, NOBODY: tl.constexpr):
    """Local experts of `pair`, `NOBODY` for foreign ones and past the end."""
    slot = tl.load(ids + pair, mask=pair < num_pairs, other=-1) - slot_start
    # The slot of a missing id is negative only where slot_start is not.
    return tl.where((slot >= 0) & (slot < L) & (pair < num_pairs), slot, NOBODY)


@triton.jit
def _height(count, tiles, ALIGN: tl.constexpr, TILE: tl.constexpr):
    """Rows of an expert's tiles but the last: shared evenly, in multiples of `ALIGN`, where tiles are made of those."""
    if ALIGN == 1 or TILE % ALIGN != 0:
        return tl.zeros_like(count) + TILE
    pieces = (count + (ALIGN - 1)) // ALIGN
    return (pieces + tiles - 1) // tl.maximum(tiles, 1) * ALIGN


@triton.jit(do_not_specialize=["num_pairs", "slot_start"])
def _place_expert(
    ids, counts, offsets, pair_of_row, row_of_pair, tile_expert, tile_row, tile_rows, num_tiles, turns,
    num_pairs, slot_start,
    L: tl.constexpr, BINS: tl.constexpr, ALIGN: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One program per expert reads all ids, no more than a block, counts everybody's and places its own."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    e = tl.program_id(0)
    bin_B = tl.arange(0, BINS)
    pair = tl.arange(0, BLOCK)
    slot = _local(ids, pair, num_pairs, slot_start, L, -1)
    count_B = tl.histogram(tl.maximum(slot, 0), BINS, mask=slot >= 0)
    first_row = tl.sum(tl.where(bin_B < e, (count_B + (ALIGN - 1)) // ALIGN * ALIGN, 0))
    first_tile = tl.sum(tl.where(bin_B < e, (count_B + (TILE - 1)) // TILE, 0))
    own = (slot == e).to(tl.int32)
    count, row = tl.sum(own), first_row + tl.cumsum(own) - 1
    tl.store(pair_of_row + row, pair, mask=own > 0)
    tl.store(row_of_pair + pair, row, mask=own > 0)
    if e == 0:
        tl.store(row_of_pair + pair, tl.full([BLOCK], -1, tl.int32), mask=(slot < 0) & (pair < num_pairs))
    own_tiles = (count + (TILE - 1)) // TILE
    height = _height(count, own_tiles, ALIGN, TILE)
    tl.store(counts + e, count)
    tl.store(offsets + e, first_row)
    if e == L - 1:
        tl.store(num_tiles, first_tile + own_tiles)
        tl.store(turns + tl.arange(0, 2), tl.zeros([2], tl.int32))
    for first in range(0, own_tiles, 32):
        i = first + tl.arange(0, 32)
        tl.store(tile_expert + first_tile + i, e + tl.zeros_like(i), mask=i < own_tiles)
        tl.store(tile_row + first_tile + i, first_row + i * height, mask=i < own_tiles)
        tl.store(tile_rows + first_tile + i, tl.minimum(count - i * height, height), mask=i < own_tiles)
    if ALIGN > 1:
        i = count + tl.arange(0, ALIGN)
        is_padding = i < (count + (ALIGN - 1)) // ALIGN * ALIGN
        tl.store(pair_of_row + first_row + i, tl.full([ALIGN], -1, tl.int32), mask=is_padding)


@triton.jit(do_not_specialize=["num_pairs", "slot_start", "max_rows"])
def _count_blocks(
    ids, block_counts, pair_of_row, num_pairs, slot_start, max_rows,
    L: tl.constexpr, BINS: tl.constexpr, ALIGN: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """How often each expert occurs in each block of pairs, ``[blocks, BINS]``."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    block = tl.program_id(0)
    slot = _local(ids, block * BLOCK + tl.arange(0, BLOCK), num_pairs, slot_start, L, -1)
    count_B = tl.histogram(tl.maximum(slot, 0), BINS, mask=slot >= 0)
    tl.store(block_counts + block * BINS + tl.arange(0, BINS), count_B)
    if ALIGN > 1:  # -1 everywhere: where no pair will be
        for first in range(block * BLOCK, max_rows, tl.num_programs(0) * BLOCK):
            row = first + tl.arange(0, BLOCK)
            tl.store(pair_of_row + row, tl.full([BLOCK], -1, tl.int32), mask=row < max_rows)


@triton.jit(do_not_specialize=["num_pairs", "slot_start"])
def _place_blocks(
    ids, block_counts, counts, offsets, pair_of_row, row_of_pair, tile_expert, tile_row, tile_rows, num_tiles, turns,
    num_pairs, slot_start,
    L: tl.constexpr, BINS: tl.constexpr, ALIGN: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
    COMPARE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Each program places one block of pairs, behind those of the blocks before it, and lists some tiles."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    block, num_blocks = tl.program_id(0), tl.num_programs(0)
    bin_B = tl.arange(0, BINS)
    pair = block * BLOCK + tl.arange(0, BLOCK)
    slot = _local(ids, pair, num_pairs, slot_start, L, L)
    if COMPARE:
        rank = _rank(ids, slot, block, num_pairs, slot_start, L, BLOCK)
    else:
        # Sorted by expert, a pair's rank in its block is its place less that of its expert's first pair.
        key = tl.sort(slot * BLOCK + tl.arange(0, BLOCK))
        slot, pair = key // BLOCK, block * BLOCK + key % BLOCK
        own_B = tl.load(block_counts + block * BINS + bin_B)
        rank = tl.arange(0, BLOCK) - tl.gather(tl.cumsum(own_B) - own_B, tl.minimum(slot, BINS - 1), 0)
    count_B, before_B = _sum_blocks(block_counts, block, num_blocks, BINS)
    aligned_B = (count_B + (ALIGN - 1)) // ALIGN * ALIGN
    start_B = tl.cumsum(aligned_B) - aligned_B
    row = tl.gather(start_B + before_B, tl.minimum(slot, BINS - 1), 0) + rank
    tl.store(pair_of_row + row, pair, mask=slot < L)
    tl.store(row_of_pair + pair, tl.where(slot < L, row, -1), mask=pair < num_pairs)
    tiles_B = (count_B + (TILE - 1)) // TILE
    first_B = tl.cumsum(tiles_B) - tiles_B
    height_B = _height(count_B, tiles_B, ALIGN, TILE)
    if block == 0:
        tl.store(counts + bin_B, count_B, mask=bin_B < L)
        tl.store(offsets + bin_B, start_B, mask=bin_B < L)
        tl.store(num_tiles, tl.sum(tiles_B))
        tl.store(turns + tl.arange(0, 2), tl.zeros([2], tl.int32))
    # The first tile of every expert, the second, and so on: taken in turns by the programs.
    for i in range(block, tl.max(tiles_B), num_blocks):
        tl.store(tile_expert + first_B + i, bin_B, mask=i < tiles_B)
        tl.store(tile_row + first_B + i, start_B + i * height_B, mask=i < tiles_B)
        tl.store(tile_rows + first_B + i, tl.minimum(count_B - i * height_B, height_B), mask=i < tiles_B)


@triton.jit
def _sum_blocks(block_counts, block, num_blocks, BINS: tl.constexpr):
    """Pairs of each expert in all blocks, and in those before `block`."""
    ROWS: tl.constexpr = 8192 // BINS
    bin_B = tl.arange(0, BINS)
    total_B, before_B = tl.zeros([BINS], tl.int32), tl.zeros([BINS], tl.int32)
    for first in range(0, num_blocks, ROWS):
        b = first + tl.arange(0, ROWS)
        counts_RB = tl.load(block_counts + b[:, None] * BINS + bin_B[None, :], mask=(b < num_blocks)[:, None], other=0)
        total_B += tl.sum(counts_RB, 0)
        before_B += tl.sum(tl.where((b < block)[:, None], counts_RB, 0), 0)
    return total_B, before_B


@triton.jit
def _rank(ids, slot, block, num_pairs, slot_start, L: tl.constexpr, BLOCK: tl.constexpr):
    """How many pairs of the block come before each pair, and have its expert."""
    AT_ONCE: tl.constexpr = 64
    i = tl.arange(0, BLOCK)
    same = tl.zeros([BLOCK, AT_ONCE], tl.int32)
    for first in tl.static_range(0, BLOCK, AT_ONCE):  # unrolled, so that all loads are under way together
        j = first + tl.arange(0, AT_ONCE)
        other = _local(ids, block * BLOCK + j, num_pairs, slot_start, L, -1)
        same += ((slot[:, None] == other[None, :]) & (j[None, :] < i[:, None])).to(tl.int32)
    return tl.sum(same, 1)
