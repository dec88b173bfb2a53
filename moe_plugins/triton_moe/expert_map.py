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

HISTOGRAM_PAIRS: Final = 512
HISTOGRAM_BINS: Final = 256
"""Up to so many pairs and experts, every program counts for itself, and one kernel is enough."""
EXPERT_PAIRS: Final = 4096
"""Up to so many pairs, one program per expert that reads them all is faster than one per block of pairs."""
BLOCK_PAIRS: Final = 1024


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
    """``[N]``: rows of each tile that are pairs, 1 to `tile`."""
    num_tiles: torch.Tensor
    """``[1]``"""

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
    by_block = num_pairs > EXPERT_PAIRS
    num_blocks = triton.cdiv(num_pairs, BLOCK_PAIRS) if by_block else 0
    # 16-byte pieces of one buffer: one allocation is cheaper than nine.
    sizes = (num_local, num_local, max_rows, num_pairs, max_tiles, max_tiles, max_tiles, 1)
    padded = [*(-(-size // 4) * 4 for size in sizes), num_blocks * bins]
    buffer = torch.empty(sum(padded), dtype=torch.int32, device=ids_TK.device)
    *pieces, block_counts = buffer.split(padded)
    found = ExpertMap(*(piece[:size] for piece, size in zip(pieces, sizes, strict=True)))
    meta = {"L": num_local, "BINS": bins, "ALIGN": align, "PDL": pdl}
    if by_block:
        meta |= {"BLOCK": BLOCK_PAIRS}
        launch(
            _count_blocks, (num_blocks,),
            (ids_TK, block_counts, found.pair_of_row, num_pairs, slot_start, max_rows),
            meta, num_warps=4, pdl=pdl,
        )  # fmt: skip
        launch(
            _place_blocks, (num_blocks,), (ids_TK, block_counts, *found, num_pairs, slot_start),
            {**meta, "TILE": tile}, num_warps=8, pdl=pdl,
        )  # fmt: skip
        return found
    alone = num_pairs <= HISTOGRAM_PAIRS and bins <= HISTOGRAM_BINS
    block = min(max(triton.next_power_of_2(num_pairs), 128), 4096)
    num_warps = 4 if block <= 1024 else 8
    if not alone:
        launch(
            _count_expert, (num_local,), (ids_TK, found.counts, num_pairs, slot_start),
            {"L": num_local, "BLOCK": block, "PDL": pdl}, num_warps=4, pdl=pdl,
        )  # fmt: skip
    launch(
        _place_expert, (num_local,), (ids_TK, *found, num_pairs, slot_start),
        {**meta, "TILE": tile, "BLOCK": block, "ALONE": alone}, num_warps=num_warps, pdl=pdl,
    )  # fmt: skip
    return found


@triton.jit
def _local(ids, pair, num_pairs, slot_start, L: tl.constexpr, NOBODY: tl.constexpr):
    """Local experts of `pair`, `NOBODY` for foreign ones and past the end."""
    slot = tl.load(ids + pair, mask=pair < num_pairs, other=-1) - slot_start
    # The slot of a missing id is negative only where slot_start is not.
    return tl.where((slot >= 0) & (slot < L) & (pair < num_pairs), slot, NOBODY)


@triton.jit(do_not_specialize=["num_pairs", "slot_start"])
def _count_expert(ids, counts, num_pairs, slot_start, L: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """How many pairs one expert has."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    e = tl.program_id(0)
    own = tl.zeros([BLOCK], tl.int32)
    for first in range(0, num_pairs, BLOCK):
        slot = _local(ids, first + tl.arange(0, BLOCK), num_pairs, slot_start, L, -1)
        own += (slot == e).to(tl.int32)
    tl.store(counts + e, tl.sum(own))


@triton.jit(do_not_specialize=["num_pairs", "slot_start"])
def _place_expert(
    ids, counts, offsets, pair_of_row, row_of_pair, tile_expert, tile_row, tile_rows, num_tiles, num_pairs, slot_start,
    L: tl.constexpr, BINS: tl.constexpr, ALIGN: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
    ALONE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program per expert reads all ids and places its own; `ALONE`, it also counts everybody's."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    e = tl.program_id(0)
    bin_B = tl.arange(0, BINS)
    pair = tl.arange(0, BLOCK)
    slot = _local(ids, pair, num_pairs, slot_start, L, -1)
    if ALONE:
        count_B = tl.histogram(tl.maximum(slot, 0), BINS, mask=slot >= 0)
        count = tl.sum((slot == e).to(tl.int32))
        tl.store(counts + e, count)
    else:
        count_B = tl.load(counts + bin_B, mask=bin_B < L, other=0)
        count = tl.load(counts + e)
    first_row = tl.sum(tl.where(bin_B < e, (count_B + (ALIGN - 1)) // ALIGN * ALIGN, 0))
    first_tile = tl.sum(tl.where(bin_B < e, (count_B + (TILE - 1)) // TILE, 0))
    row = _put(pair_of_row, row_of_pair, e, pair, slot, first_row, num_pairs)
    # The first block is apart, so that its loads are under way while counts are summed.
    for first in range(BLOCK, num_pairs, BLOCK):
        pair = first + tl.arange(0, BLOCK)
        slot = _local(ids, pair, num_pairs, slot_start, L, -1)
        row = _put(pair_of_row, row_of_pair, e, pair, slot, row, num_pairs)
    own_tiles = (count + (TILE - 1)) // TILE
    tl.store(offsets + e, first_row)
    if e == L - 1:
        tl.store(num_tiles, first_tile + own_tiles)
    for first in range(0, own_tiles, 32):
        i = first + tl.arange(0, 32)
        tl.store(tile_expert + first_tile + i, e + tl.zeros_like(i), mask=i < own_tiles)
        tl.store(tile_row + first_tile + i, first_row + i * TILE, mask=i < own_tiles)
        tl.store(tile_rows + first_tile + i, tl.minimum(count - i * TILE, TILE), mask=i < own_tiles)
    if ALIGN > 1:
        i = count + tl.arange(0, ALIGN)
        is_padding = i < (count + (ALIGN - 1)) // ALIGN * ALIGN
        tl.store(pair_of_row + first_row + i, tl.full([ALIGN], -1, tl.int32), mask=is_padding)


@triton.jit
def _put(pair_of_row, row_of_pair, e, pair, slot, row, num_pairs):
    """Rows from `row` on for those of `pair` whose expert is `e`; returns the next free row."""
    own = (slot == e).to(tl.int32)
    rows = row + tl.cumsum(own) - 1
    tl.store(pair_of_row + rows, pair, mask=own > 0)
    tl.store(row_of_pair + pair, rows, mask=own > 0)
    if e == 0:
        tl.store(row_of_pair + pair, tl.full(pair.shape, -1, tl.int32), mask=(slot < 0) & (pair < num_pairs))
    return row + tl.sum(own)


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
    ids, block_counts, counts, offsets, pair_of_row, row_of_pair, tile_expert, tile_row, tile_rows, num_tiles,
    num_pairs, slot_start,
    L: tl.constexpr, BINS: tl.constexpr, ALIGN: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Each program places one block of pairs, behind those of the blocks before it, and lists some tiles."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    block, num_blocks = tl.program_id(0), tl.num_programs(0)
    bin_B = tl.arange(0, BINS)
    # Sorted by expert, a pair's rank in its block is its place less that of its expert's first pair.
    slot = _local(ids, block * BLOCK + tl.arange(0, BLOCK), num_pairs, slot_start, L, L)
    key = tl.sort(slot * BLOCK + tl.arange(0, BLOCK))
    slot, pair = key // BLOCK, block * BLOCK + key % BLOCK
    count_B, before_B, own_B = _sum_blocks(block_counts, block, num_blocks, BINS)
    aligned_B = (count_B + (ALIGN - 1)) // ALIGN * ALIGN
    start_B = tl.cumsum(aligned_B) - aligned_B
    row = tl.gather(start_B + before_B - (tl.cumsum(own_B) - own_B), tl.minimum(slot, BINS - 1), 0)
    row += tl.arange(0, BLOCK)
    tl.store(pair_of_row + row, pair, mask=slot < L)
    tl.store(row_of_pair + pair, tl.where(slot < L, row, -1), mask=pair < num_pairs)
    tiles_B = (count_B + (TILE - 1)) // TILE
    first_B = tl.cumsum(tiles_B) - tiles_B
    if block == 0:
        tl.store(counts + bin_B, count_B, mask=bin_B < L)
        tl.store(offsets + bin_B, start_B, mask=bin_B < L)
        tl.store(num_tiles, tl.sum(tiles_B))
    # The first tile of every expert, the second, and so on: taken in turns by the programs.
    for i in range(block, tl.max(tiles_B), num_blocks):
        tl.store(tile_expert + first_B + i, bin_B, mask=i < tiles_B)
        tl.store(tile_row + first_B + i, start_B + i * TILE, mask=i < tiles_B)
        tl.store(tile_rows + first_B + i, tl.minimum(count_B - i * TILE, TILE), mask=i < tiles_B)


@triton.jit
def _sum_blocks(block_counts, block, num_blocks, BINS: tl.constexpr):
    """Pairs of each expert in all blocks, in those before `block`, and in it."""
    ROWS: tl.constexpr = 8192 // BINS
    bin_B = tl.arange(0, BINS)
    total_B, before_B = tl.zeros([BINS], tl.int32), tl.zeros([BINS], tl.int32)
    for first in range(0, num_blocks, ROWS):
        b = first + tl.arange(0, ROWS)
        counts_RB = tl.load(block_counts + b[:, None] * BINS + bin_B[None, :], mask=(b < num_blocks)[:, None], other=0)
        total_B += tl.sum(counts_RB, 0)
        before_B += tl.sum(tl.where((b < block)[:, None], counts_RB, 0), 0)
    return total_B, before_B, tl.load(block_counts + block * BINS + bin_B)
