"""Which rows belong to which expert, made on the device: a stable counting sort with a list of row tiles.

Nothing depends on the data on the host's side: buffers and grids have the size of the worst case, and kernels stop at
``num_tiles``, which they read on the device.
"""

# Kernels are functions of tiles, for which Python has no types; their names are those of the formulas.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from moe_plugins.triton_moe.launch import launch

SCAN_PAIRS: Final = 8192
"""Up to so many pairs, one program per expert that reads them all is faster than two kernels over blocks of pairs."""
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
    rows. One kernel, or two for many pairs."""
    num_pairs = ids_TK.numel()
    max_rows, max_tiles = map_bounds(num_pairs, num_local, tile, align)
    bins = max(triton.next_power_of_2(num_local), 16)
    by_block = num_pairs > SCAN_PAIRS
    num_blocks = triton.cdiv(num_pairs, BLOCK_PAIRS)
    # 16-byte pieces of one buffer: one allocation is cheaper than eight.
    sizes = (num_local, num_local, max_rows, num_pairs, max_tiles, max_tiles, max_tiles, 1)
    padded = [-(-size // 4) * 4 for size in sizes]
    buffer = torch.empty(sum(padded) + by_block * num_blocks * bins, dtype=torch.int32, device=ids_TK.device)
    *pieces, block_counts = buffer.split([*padded, by_block * num_blocks * bins])
    found = ExpertMap(*(piece[:size] for piece, size in zip(pieces, sizes, strict=True)))
    meta = {"L": num_local, "BINS": bins, "ALIGN": align, "TILE": tile, "PDL": pdl}
    if by_block:
        launch(
            _count_blocks, (num_blocks,), (ids_TK, block_counts, num_pairs, slot_start),
            {"L": num_local, "BINS": bins, "BLOCK": BLOCK_PAIRS, "PDL": pdl}, num_warps=4, pdl=pdl,
        )  # fmt: skip
        launch(
            _place_blocks, (num_blocks,), (ids_TK, block_counts, *found, num_pairs, slot_start),
            {**meta, "BLOCK": BLOCK_PAIRS, "ROWS": max(8192 // bins, 1)}, num_warps=8, pdl=pdl,
        )  # fmt: skip
    else:
        block = min(max(triton.next_power_of_2(num_pairs), 128), 4096)
        launch(
            _scan_experts, (num_local,), (ids_TK, *found, num_pairs, slot_start),
            {**meta, "BLOCK": block}, num_warps=4 if block <= 1024 else 8, pdl=pdl,
        )  # fmt: skip
    return found


@triton.jit
def _local(ids, pair, num_pairs, slot_start, L: tl.constexpr, NOBODY: tl.constexpr):
    """Local experts of `pair`, `NOBODY` for foreign ones and past the end."""
    slot = tl.load(ids + pair, mask=pair < num_pairs, other=-1) - slot_start
    # The slot of a missing id is negative whatever slot_start is.
    return tl.where((slot >= 0) & (slot < L) & (pair < num_pairs), slot, NOBODY)


@triton.jit
def _describe(
    e, counts_B, bin_B, counts, offsets, pair_of_row, tile_expert, tile_row, tile_rows, num_tiles,
    L: tl.constexpr, ALIGN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write what concerns expert `e` beside its pairs; returns its first row."""
    count = tl.sum(tl.where(bin_B == e, counts_B, 0))
    aligned_B = (counts_B + (ALIGN - 1)) // ALIGN * ALIGN
    start = tl.sum(tl.where(bin_B < e, aligned_B, 0))
    first_tile = tl.sum(tl.where(bin_B < e, (counts_B + (TILE - 1)) // TILE, 0))
    own_tiles = (count + (TILE - 1)) // TILE
    tl.store(counts + e, count)
    tl.store(offsets + e, start)
    if e == L - 1:
        tl.store(num_tiles, first_tile + own_tiles)
    for first in range(0, own_tiles, 32):
        i = first + tl.arange(0, 32)
        tl.store(tile_expert + first_tile + i, e + tl.zeros_like(i), mask=i < own_tiles)
        tl.store(tile_row + first_tile + i, start + i * TILE, mask=i < own_tiles)
        tl.store(tile_rows + first_tile + i, tl.minimum(count - i * TILE, TILE), mask=i < own_tiles)
    if ALIGN > 1:
        i = count + tl.arange(0, ALIGN)
        tl.store(pair_of_row + start + i, tl.full([ALIGN], -1, tl.int32), mask=i < (count + ALIGN - 1) // ALIGN * ALIGN)
    return start


@triton.jit(do_not_specialize=["num_pairs", "slot_start"])
def _scan_experts(
    ids, counts, offsets, pair_of_row, row_of_pair, tile_expert, tile_row, tile_rows, num_tiles, num_pairs, slot_start,
    L: tl.constexpr, BINS: tl.constexpr, ALIGN: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per expert reads all ids: once to count, once to place its own."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    e = tl.program_id(0)
    bin_B = tl.arange(0, BINS)
    counts_B = tl.zeros([BINS], tl.int32)
    for first in range(0, num_pairs, BLOCK):
        pair = first + tl.arange(0, BLOCK)
        slot = _local(ids, pair, num_pairs, slot_start, L, -1)
        counts_B += tl.histogram(tl.maximum(slot, 0), BINS, mask=slot >= 0)
    row = _describe(
        e, counts_B, bin_B, counts, offsets, pair_of_row, tile_expert, tile_row, tile_rows, num_tiles, L, ALIGN, TILE
    )
    for first in range(0, num_pairs, BLOCK):
        pair = first + tl.arange(0, BLOCK)
        slot = _local(ids, pair, num_pairs, slot_start, L, -1)
        own = (slot == e).to(tl.int32)
        rows = row + tl.cumsum(own) - 1
        tl.store(pair_of_row + rows, pair, mask=own > 0)
        tl.store(row_of_pair + pair, rows, mask=own > 0)
        row += tl.sum(own)
        if e == 0:
            tl.store(row_of_pair + pair, tl.full([BLOCK], -1, tl.int32), mask=(slot < 0) & (pair < num_pairs))


@triton.jit(do_not_specialize=["num_pairs", "slot_start"])
def _count_blocks(
    ids, block_counts, num_pairs, slot_start,
    L: tl.constexpr, BINS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """How often each expert occurs in each block of pairs, ``[blocks, BINS]``."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = _local(ids, pair, num_pairs, slot_start, L, -1)
    counts_B = tl.histogram(tl.maximum(slot, 0), BINS, mask=slot >= 0)
    tl.store(block_counts + tl.program_id(0) * BINS + tl.arange(0, BINS), counts_B)


@triton.jit(do_not_specialize=["num_pairs", "slot_start"])
def _place_blocks(
    ids, block_counts, counts, offsets, pair_of_row, row_of_pair, tile_expert, tile_row, tile_rows, num_tiles,
    num_pairs, slot_start,
    L: tl.constexpr, BINS: tl.constexpr, ALIGN: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Each program places one block of pairs, behind those of the blocks before it."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    block, num_blocks = tl.program_id(0), tl.num_programs(0)
    bin_B = tl.arange(0, BINS)
    total_B, before_B = tl.zeros([BINS], tl.int32), tl.zeros([BINS], tl.int32)
    for first in range(0, num_blocks, ROWS):
        b = first + tl.arange(0, ROWS)
        counts_RB = tl.load(block_counts + b[:, None] * BINS + bin_B[None, :], mask=(b < num_blocks)[:, None], other=0)
        total_B += tl.sum(counts_RB, 0)
        before_B += tl.sum(tl.where((b < block)[:, None], counts_RB, 0), 0)
    for e in range(block, L, num_blocks):
        _describe(
            e, total_B, bin_B, counts, offsets, pair_of_row, tile_expert, tile_row, tile_rows, num_tiles,
            L, ALIGN, TILE,
        )  # fmt: skip
    # Sorted by expert, a pair's rank among its expert's pairs is its place less that of the expert's first pair.
    pair = block * BLOCK + tl.arange(0, BLOCK)
    slot = _local(ids, pair, num_pairs, slot_start, L, L)
    key = tl.sort(slot * BLOCK + tl.arange(0, BLOCK))
    sorted_slot, sorted_pair = key // BLOCK, block * BLOCK + key % BLOCK
    own_B = tl.load(block_counts + block * BINS + bin_B)
    aligned_B = (total_B + (ALIGN - 1)) // ALIGN * ALIGN
    base_B = (tl.cumsum(aligned_B) - aligned_B) + before_B - (tl.cumsum(own_B) - own_B)
    rows = tl.gather(base_B, tl.minimum(sorted_slot, BINS - 1), 0) + tl.arange(0, BLOCK)
    here = sorted_slot < L
    tl.store(pair_of_row + rows, sorted_pair, mask=here)
    tl.store(row_of_pair + sorted_pair, tl.where(here, rows, -1), mask=sorted_pair < num_pairs)
