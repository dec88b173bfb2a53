"""Which tile a persistent Gluon program works on next: device side.

A program's producer draws a number when it is nearly done with a tile, and posts whose tile that is for its consumers.
So neighbours in the order of tiles begin together and find each other's weights in the cache. Were numbers dealt out
beforehand, programs with small tiles would run ahead until every tile read its weights from memory.
"""

# Kernels are functions of tiles, for which Python has no types; their names are those of the formulas.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, attr-defined"
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

SLOTS = gl.constexpr(2)
"""Tiles that are posted and not yet taken, at most."""
AHEAD = gl.constexpr(8)
"""Steps before the end of a tile at which the next number is drawn: more than it takes to know whose tile it is."""


@gluon.jit
def open_board(CONSUMERS: gl.constexpr):
    """Shared memory for what is posted, and barriers that say that it was posted and taken."""
    board = gl.allocate_shared_memory(gl.int32, [4 * SLOTS, 32], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    posted = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    taken = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(SLOTS):
        mbarrier.init(posted.index(i), count=1)
        mbarrier.init(taken.index(i), count=CONSUMERS)
    return board, posted, taken


@gluon.jit
def _lanes(WARPS: gl.constexpr):
    return gl.arange(0, 32 * WARPS, layout=gl.BlockedLayout([1], [32], [WARPS], [0]))


@gluon.jit
def _count(counter, WARPS: gl.constexpr):
    """What the counter was before this program."""
    lane = _lanes(WARPS)
    before = gl.atomic_add(counter + gl.zeros_like(lane), gl.zeros_like(lane) + 1, mask=lane == 0)
    return gl.sum(gl.where(lane == 0, before, 0), 0)


@gluon.jit
def draw(
    turns, num_tiles, tile_expert, tile_row, tile_rows,
    NUM_COLUMNS: gl.constexpr, GROUP: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Expert, first row, number of rows and column tile of the next piece of work; no rows past the end.

    `GROUP` row tiles sweep the columns together, so that weights are read from memory once a group.
    """
    t = _count(turns, WARPS)
    group = t // (GROUP * NUM_COLUMNS)
    within = t % (GROUP * NUM_COLUMNS)
    height = gl.maximum(gl.minimum(num_tiles - group * GROUP, GROUP), 1)
    tile = group * GROUP + within % height
    is_work = t < num_tiles * NUM_COLUMNS
    expert = gl.load(tile_expert + tile, mask=is_work, other=0)
    row = gl.load(tile_row + tile, mask=is_work, other=0)
    rows = gl.load(tile_rows + tile, mask=is_work, other=0)
    return expert, row, rows, within // height


@gluon.jit
def post(board, posted, taken, tile, expert, row, rows, column, WARPS: gl.constexpr):
    """Tell the consumers of the program's tile number `tile`."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    slot = tile % SLOTS
    mbarrier.wait(taken.index(slot), (tile // SLOTS + 1) % 2)
    board.index(4 * slot).store(gl.full([32], expert, gl.int32, LAYOUT))
    board.index(4 * slot + 1).store(gl.full([32], row, gl.int32, LAYOUT))
    board.index(4 * slot + 2).store(gl.full([32], rows, gl.int32, LAYOUT))
    board.index(4 * slot + 3).store(gl.full([32], column, gl.int32, LAYOUT))
    mbarrier.arrive(posted.index(slot))


@gluon.jit
def take(board, posted, taken, tile):
    """What the producer posted of tile number `tile`, for a consumer of four warps."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    slot = tile % SLOTS
    mbarrier.wait(posted.index(slot), tile // SLOTS % 2)
    expert = gl.max(board.index(4 * slot).load(LAYOUT), 0)
    row = gl.max(board.index(4 * slot + 1).load(LAYOUT), 0)
    rows = gl.max(board.index(4 * slot + 2).load(LAYOUT), 0)
    column = gl.max(board.index(4 * slot + 3).load(LAYOUT), 0)
    mbarrier.arrive(taken.index(slot))
    return expert, row, rows, column


@gluon.jit
def leave(turns, WARPS: gl.constexpr):
    """The last producer to have drawn makes both counters zero again, for the next kernel on the same map."""
    if _count(turns + 1, WARPS) == gl.num_programs(0) - 1:
        lane = _lanes(WARPS)
        gl.store(turns + lane, gl.zeros_like(lane), mask=lane < 2)
