"""Device side of :mod:`moe_plugins.triton_moe.grouped_gluon`: one persistent kernel, three groups of warps.

A producer fills a ring of stages in shared memory; two consumers, each one warpgroup with half the rows of a tile,
multiply from it. `full` says that a stage has been loaded, `empty` that both consumers are done with it. The ring runs
on across tiles: the producer draws (`gluon_turns`) and loads the next tile while the consumers store this one.
"""

# Kernels are functions of tiles, for which Python has no types; their names are those of the formulas.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, attr-defined"
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from moe_plugins.triton_moe.activation import activate
from moe_plugins.triton_moe.gluon_turns import AHEAD, draw, leave, open_board, post, take


@gluon.jit
def _advance(stage, phase, STAGES: gl.constexpr):
    stage += 1
    if stage == STAGES:
        stage = 0
        phase ^= 1
    return stage, phase


@gluon.jit
def _before(stage, STAGES: gl.constexpr):
    # Not kept in a variable of its own: one that starts as an alias of `stage` is not carried through a loop.
    return (stage + (STAGES - 1)) % STAGES


@gluon.jit
def _load_weights(w_desc, row, k, UP: gl.constexpr, bar, weights, stage):
    """Both halves of a stage's weight rows; the second starts `UP` rows after the first."""
    tma.async_copy_global_to_shared(w_desc, [row, k], bar, weights.index(2 * stage))
    tma.async_copy_global_to_shared(w_desc, [row + UP, k], bar, weights.index(2 * stage + 1))


@gluon.jit
def _row_pointers(x, pair_of_row, row, rows, K: gl.constexpr, TOP_K: gl.constexpr, BK: gl.constexpr):
    """``[64, BK]`` of x for the pairs at `row`; rows that are no pairs read token 0, for nobody."""
    # 16 bytes a thread, eight threads a row: a warp writes four swizzled rows without bank conflicts.
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    r = gl.arange(0, 64, layout=gl.SliceLayout(1, LAYOUT))
    c = gl.arange(0, BK, layout=gl.SliceLayout(0, LAYOUT))
    token = gl.load(pair_of_row + row + r, mask=r < rows, other=0) // TOP_K
    return x + token.to(gl.int64)[:, None] * K + c[None, :]


@gluon.jit
def _produce(
    x, w_desc, pair_of_row, tile_expert, tile_row, tile_rows, num_tiles_, turns, rows_A, weights, full, empty,
    board, posted, taken,
    K: gl.constexpr, W: gl.constexpr, UP: gl.constexpr, TOP_K: gl.constexpr, BC: gl.constexpr, BK: gl.constexpr,
    NUM_COLUMNS: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    WARPS: gl.constexpr = 4 if TOP_K else 1
    STEPS: gl.constexpr = (K + BK - 1) // BK
    num_tiles = gl.load(num_tiles_)
    stage, phase, tile = 0, 1, 0
    expert, row, rows, column = draw(turns, num_tiles, tile_expert, tile_row, tile_rows, NUM_COLUMNS, GROUP, WARPS)
    while rows > 0:
        post(board, posted, taken, tile, expert, row, rows, column, WARPS)
        tile += 1
        next_expert, next_row, next_rows, next_column = expert + 0, row + 0, rows + 0, column + 0
        if TOP_K:
            x_0 = _row_pointers(x, pair_of_row, row, rows, K, TOP_K, BK)
            x_1 = _row_pointers(x, pair_of_row, row + 64, rows - 64, K, TOP_K, BK)
        for step in range(STEPS):
            if step == (STEPS - AHEAD if STEPS > AHEAD else 0):
                next_expert, next_row, next_rows, next_column = draw(
                    turns, num_tiles, tile_expert, tile_row, tile_rows, NUM_COLUMNS, GROUP, WARPS
                )  # fmt: skip
            k = step * BK
            mbarrier.wait(empty.index(stage), phase)
            bar = full.index(stage)
            if TOP_K:
                mbarrier.expect(bar, 2 * w_desc.block_type.nbytes)
                _load_weights(w_desc, expert * W + column * BC, k, UP, bar, weights, stage)
                async_copy.async_copy_global_to_shared(rows_A.index(2 * stage), x_0 + k)
                if rows > 64:
                    async_copy.async_copy_global_to_shared(rows_A.index(2 * stage + 1), x_1 + k)
                async_copy.mbarrier_arrive(bar, increment_count=False)
            else:
                if rows > 64:
                    mbarrier.expect(bar, 2 * w_desc.block_type.nbytes + 2 * x.block_type.nbytes)
                    tma.async_copy_global_to_shared(x, [row + 64, k], bar, rows_A.index(2 * stage + 1))
                else:
                    mbarrier.expect(bar, 2 * w_desc.block_type.nbytes + x.block_type.nbytes)
                tma.async_copy_global_to_shared(x, [row, k], bar, rows_A.index(2 * stage))
                _load_weights(w_desc, expert * W + column * BC, k, UP, bar, weights, stage)
            stage, phase = _advance(stage, phase, STAGES)
        expert, row, rows, column = next_expert, next_row, next_rows, next_column
    post(board, posted, taken, tile, expert, row, rows, column, WARPS)
    leave(turns, WARPS)


@gluon.jit
def _multiply(
    PART: gl.constexpr, rows_A, weights, full, empty, lead, stage, phase,
    STEPS: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, TOP_K: gl.constexpr, LEAD: gl.constexpr,
):  # fmt: skip
    """``[64, BN]`` in float32, and where the ring stands then."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    acc = gl.zeros([64, BN], gl.float32, LAYOUT)
    for k in range(STEPS):
        mbarrier.wait(full.index(stage), phase)
        if TOP_K:
            fence_async_shared()  # cp.async wrote what the tensor cores are to read
        token = warpgroup_mma(
            rows_A.index(2 * stage + PART), weights.index(stage).permute((1, 0)), acc, is_async=True
        )  # fmt: skip
        acc = warpgroup_mma_wait(1, deps=(token,))
        if k > 0:
            mbarrier.arrive(empty.index(_before(stage, STAGES)))
        if LEAD > 0 and PART == 0:  # noqa: SIM102 - this is decided by the compiler, the next by the GPU
            if k == LEAD:
                mbarrier.arrive(lead)
        stage, phase = _advance(stage, phase, STAGES)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    mbarrier.arrive(empty.index(_before(stage, STAGES)))
    return acc, stage, phase


@gluon.jit
def _bias(bias, first, at, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr, BOX: gl.constexpr):
    column = at + gl.arange(0, BOX, layout=gl.SliceLayout(0, LAYOUT))
    return gl.load(bias + first + column, mask=column < COLUMNS, other=0.0).to(gl.float32)[None, :]


@gluon.jit
def _store(out_desc, staging, out, row, column):
    """By TMA, which drops the columns past the end; returns before the tile has left shared memory."""
    tma.store_wait(0)
    staging.store(out.to(out_desc.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(out_desc, [row, column], staging)


@gluon.jit
def _finish(
    acc, bias, out_desc, staging, expert, row, column,
    COLUMNS: gl.constexpr, W: gl.constexpr, UP: gl.constexpr, GATED: gl.constexpr, BN: gl.constexpr,
    KIND: gl.constexpr, ALPHA: gl.constexpr, BETA: gl.constexpr, CLAMP: gl.constexpr, AFTER: gl.constexpr,
):  # fmt: skip
    """Bias, activation and store of what belongs to output columns from `column` on."""
    BOX: gl.constexpr = out_desc.block_type.shape[1]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BOX, 16])
    if BN == BOX:
        if bias is not None:
            acc += _bias(bias, expert * W, column, COLUMNS, LAYOUT, BOX)
        _store(out_desc, staging, activate(acc, acc, KIND, ALPHA, BETA, CLAMP, AFTER), row, column)
    else:
        # Halves of the accumulator are halves of each thread's registers: nothing moves.
        left, right = gl.split(acc.reshape((64, 2, BOX)).permute((0, 2, 1)))
        left = gl.convert_layout(left, LAYOUT, assert_trivial=True)
        right = gl.convert_layout(right, LAYOUT, assert_trivial=True)
        if bias is not None:
            left += _bias(bias, expert * W, column, COLUMNS, LAYOUT, BOX)
            if GATED:
                right += _bias(bias, expert * W + UP, column, COLUMNS, LAYOUT, BOX)
            else:
                right += _bias(bias, expert * W, column + BOX, COLUMNS, LAYOUT, BOX)
        _store(out_desc, staging, activate(left, right, KIND, ALPHA, BETA, CLAMP, AFTER), row, column)
        if not GATED:
            _store(out_desc, staging, activate(right, right, KIND, ALPHA, BETA, CLAMP, AFTER), row, column + BOX)


@gluon.jit
def _consume(
    PART: gl.constexpr, bias, out_desc, rows_A, weights, staging, full, empty, lead, board, posted, taken,
    COLUMNS: gl.constexpr, W: gl.constexpr, UP: gl.constexpr, GATED: gl.constexpr, TOP_K: gl.constexpr,
    STEPS: gl.constexpr, BN: gl.constexpr, BC: gl.constexpr, STAGES: gl.constexpr, LEAD: gl.constexpr,
    KIND: gl.constexpr, ALPHA: gl.constexpr, BETA: gl.constexpr, CLAMP: gl.constexpr, AFTER: gl.constexpr,
):  # fmt: skip
    stage, phase, tile = 0, 0, 0
    expert, row, rows, column = take(board, posted, taken, tile)
    while rows > 0:
        if rows > 64 * PART:
            if LEAD > 0 and PART == 1:
                mbarrier.wait(lead, tile % 2)
            acc, stage, phase = _multiply(
                PART, rows_A, weights, full, empty, lead, stage, phase, STEPS, BN, STAGES, TOP_K, LEAD
            )
            _finish(
                acc, bias, out_desc, staging.index(PART), expert, row + 64 * PART, column * BC,
                COLUMNS, W, UP, GATED, BN, KIND, ALPHA, BETA, CLAMP, AFTER,
            )  # fmt: skip
        else:
            # Nothing here for the second consumer, but `empty` counts both.
            for _ in range(STEPS):
                mbarrier.wait(full.index(stage), phase)
                mbarrier.arrive(empty.index(stage))
                stage, phase = _advance(stage, phase, STAGES)
        tile += 1
        expert, row, rows, column = take(board, posted, taken, tile)
    tma.store_wait(0)


@gluon.jit
def grouped_gemm(
    x, w_desc, bias, out_desc, pair_of_row, tile_expert, tile_row, tile_rows, num_tiles, turns,
    K: gl.constexpr, COLUMNS: gl.constexpr, GATED: gl.constexpr, TOP_K: gl.constexpr,
    BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr, LEAD: gl.constexpr,
    PDL: gl.constexpr,
    KIND: gl.constexpr, ALPHA: gl.constexpr, BETA: gl.constexpr, CLAMP: gl.constexpr, AFTER: gl.constexpr,
):  # fmt: skip
    """``out[r] = activate(rows[r] @ w[expert of r].T + bias)`` for tiles of up to 128 rows and `BN` weight rows.

    With `TOP_K` > 0, `x` points to the tokens ``[T, K]`` and row r is that of token ``pair_of_row[r] // TOP_K``; with
    0 it describes the rows themselves, in boxes of 64. `w_desc` describes the weights of all experts as one matrix, in
    boxes of ``BN // 2`` rows: one of gate rows and one of up rows when `GATED`, else two neighbours.
    """
    if PDL:
        gl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
        gl.inline_asm_elementwise(
            "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
        )  # fmt: skip
    gl.static_assert(TOP_K == 0 or K % BK == 0, "gathered rows are read in whole stages")
    W: gl.constexpr = 2 * COLUMNS if GATED else COLUMNS
    UP: gl.constexpr = COLUMNS if GATED else BN // 2
    BC: gl.constexpr = BN // 2 if GATED else BN
    NUM_COLUMNS: gl.constexpr = (COLUMNS + BC - 1) // BC
    STEPS: gl.constexpr = (K + BK - 1) // BK
    # With tiles shorter than the ring the first consumer could be two tiles ahead, where a phase bit says nothing.
    LEADS: gl.constexpr = LEAD if STEPS > STAGES else 0
    T: gl.constexpr = w_desc.dtype
    rows_A = gl.allocate_shared_memory(
        T, [2 * STAGES, 64, BK], gl.NVMMASharedLayout.get_default_for([64, BK], T)
    )  # fmt: skip
    weights = gl.allocate_shared_memory(T, [STAGES, BN, BK], gl.NVMMASharedLayout.get_default_for([BN, BK], T))
    halves = weights._reinterpret(T, [2 * STAGES, BN // 2, BK], w_desc.layout)
    staging = gl.allocate_shared_memory(T, [2, 64, out_desc.block_type.shape[1]], out_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    lead = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        # cp.async: each of the producer's 128 threads arrives when its own copies have landed.
        mbarrier.init(full.index(i), count=129 if TOP_K else 1)
        mbarrier.init(empty.index(i), count=2)
    mbarrier.init(lead, count=1)
    board, posted, taken = open_board(2)
    gl.warp_specialize(
        [
            (_consume, (
                0, bias, out_desc, rows_A, weights, staging, full, empty, lead, board, posted, taken,
                COLUMNS, W, UP, GATED, TOP_K, STEPS, BN, BC, STAGES, LEADS, KIND, ALPHA, BETA, CLAMP, AFTER,
            )),
            (_consume, (
                1, bias, out_desc, rows_A, weights, staging, full, empty, lead, board, posted, taken,
                COLUMNS, W, UP, GATED, TOP_K, STEPS, BN, BC, STAGES, LEADS, KIND, ALPHA, BETA, CLAMP, AFTER,
            )),
            (_produce, (
                x, w_desc, pair_of_row, tile_expert, tile_row, tile_rows, num_tiles, turns, rows_A, halves, full, empty,
                board, posted, taken, K, W, UP, TOP_K, BC, BK, NUM_COLUMNS, STAGES, GROUP,
            )),
        ],
        [4, 4 if TOP_K else 1],
        [232, 40],
    )  # fmt: skip
