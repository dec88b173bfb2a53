"""Device side of :mod:`moe_plugins.triton_moe.fp8_gluon`: one persistent kernel, a producer and two or three consumers.

The ring of stages and its barriers are those of :mod:`moe_plugins.triton_moe.grouped_gluon_kernels`, and tiles are
drawn. The tensor cores sum 128 columns, then the consumer multiplies that by the scales and adds it to its own sums,
while the others have the tensor cores. Scales travel with the stages: a consumer that read them from memory,
even a step ahead, would wait for them before each of its sums.
"""

# Kernels are functions of tiles, for which Python has no types; their names are those of the formulas.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, attr-defined"
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from moe_plugins.triton_moe.activation import activate
from moe_plugins.triton_moe.gluon_turns import AHEAD, draw, leave, open_board, post, take
from moe_plugins.triton_moe.grouped_gluon_kernels import _advance, _bias, _store
from moe_plugins.triton_moe.quant_rows import scale_of, to_e4m3


@gluon.jit
def _produce(
    x, x_scales, w_desc, w_scales, tile_expert, tile_row, tile_rows, num_tiles_, turns, rows_A, weights, scales,
    full, empty, board, posted, taken,
    COLUMNS: gl.constexpr, PASSES: gl.constexpr, BOXES: gl.constexpr, PARTS: gl.constexpr, BLOCKS: gl.constexpr,
    STEPS: gl.constexpr, BLOCK: gl.constexpr, NUM_COLUMNS: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
    W_BLOCKS: gl.constexpr, SCALED: gl.constexpr, STATIC: gl.constexpr,
):  # fmt: skip
    SCALES: gl.constexpr = PARTS + BOXES
    lane = gl.arange(0, 64, layout=gl.BlockedLayout([2], [32], [1], [0]))
    num_tiles = gl.load(num_tiles_)
    num_rows = x.shape[0]
    stage, phase, tile = 0, 1, 0
    expert, row, rows, column = draw(turns, num_tiles, tile_expert, tile_row, tile_rows, NUM_COLUMNS, GROUP, 1)
    while rows > 0:
        post(board, posted, taken, tile, expert, row, rows, column, 1)
        tile += 1
        next_expert, next_row, next_rows, next_column = expert + 0, row + 0, rows + 0, column + 0
        # One scale, for 64 rows: to a consumer it is another of each row.
        x_at = x_scales + gl.zeros_like(lane) if STATIC else x_scales + row + lane
        for half in range(PASSES):
            w_row = expert * (STEPS * PASSES * COLUMNS) + half * COLUMNS + column * (BOXES * BLOCK)
            for k in range(STEPS):
                if (half == PASSES - 1) & (k == (STEPS - AHEAD if STEPS > AHEAD else 0)):
                    next_expert, next_row, next_rows, next_column = draw(
                        turns, num_tiles, tile_expert, tile_row, tile_rows, NUM_COLUMNS, GROUP, 1
                    )  # fmt: skip
                mbarrier.wait(empty.index(stage), phase)
                bar = full.index(stage)
                for part in gl.static_range(PARTS):
                    mbarrier.expect(
                        bar, BOXES * w_desc.block_type.nbytes + (part + 1) * x.block_type.nbytes,
                        pred=(rows > 64 * part) & (rows <= 64 * part + 64),
                    )  # fmt: skip
                for part in gl.static_range(PARTS):
                    if rows > 64 * part:
                        tma.async_copy_global_to_shared(
                            x, [row + 64 * part, k * BLOCK], bar, rows_A.index(PARTS * stage + part)
                        )  # fmt: skip
                        x_ahead = (k * num_rows if SCALED > 0 else 0) + (0 if STATIC else 64 * part)
                        async_copy.async_copy_global_to_shared(scales.index(SCALES * stage + part), x_at + x_ahead)
                for box in gl.static_range(BOXES):
                    tma.async_copy_global_to_shared(
                        w_desc, [w_row + k * (PASSES * COLUMNS) + box * BLOCK, 0], bar,
                        weights.index(BOXES * stage + box),
                    )  # fmt: skip
                    block = expert * PASSES + half
                    if W_BLOCKS:  # past the last one any will do
                        block = (block * BLOCKS + gl.minimum(column * BOXES + box, BLOCKS - 1)) * STEPS + k
                    async_copy.async_copy_global_to_shared(
                        scales.index(SCALES * stage + PARTS + box), w_scales + block + gl.zeros_like(lane)
                    )  # fmt: skip
                async_copy.mbarrier_arrive(bar, increment_count=False)
                stage, phase = _advance(stage, phase, STAGES)
        expert, row, rows, column = next_expert, next_row, next_rows, next_column
    post(board, posted, taken, tile, expert, row, rows, column, 1)
    leave(turns, 1)


@gluon.jit
def _block(
    PART: gl.constexpr, BOX: gl.constexpr, BOXES: gl.constexpr, PARTS: gl.constexpr, EACH: gl.constexpr, rows_A,
    weights, scales, stage, part, LAYOUT: gl.constexpr,
):  # fmt: skip
    """``[64, BLOCK]`` of a stage in the registers of `part`, or unless `EACH` added to it, and the scales of its
    rows."""
    ROWS: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    token = warpgroup_mma(
        rows_A.index(PARTS * stage + PART), weights.index(BOXES * stage + BOX).permute((1, 0)), part,
        use_acc=not EACH, is_async=True,
    )  # fmt: skip
    at = (PARTS + BOXES) * stage
    scale = scales.index(at + PART).load(ROWS) * scales.index(at + PARTS + BOX).load(ROWS)
    return warpgroup_mma_wait(0, deps=(token,)), scale[:, None]


@gluon.jit
def _multiply(
    PART: gl.constexpr, BOXES: gl.constexpr, PARTS: gl.constexpr, EACH: gl.constexpr, rows_A, weights, scales, full,
    empty, stage, phase, STEPS: gl.constexpr, STAGES: gl.constexpr, BLOCK: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """``[64, BLOCK]`` in float32 of the first box and of the last one, and where the ring stands then.

    `EACH` step has scales of its own; otherwise the tensor cores add them all."""
    left = gl.zeros([64, BLOCK], gl.float32, LAYOUT)
    right = gl.zeros([64, BLOCK], gl.float32, LAYOUT)
    part = gl.zeros([64, BLOCK], gl.float32, LAYOUT)
    left_scale = gl.zeros([64, 1], gl.float32, LAYOUT)
    right_scale = gl.zeros([64, 1], gl.float32, LAYOUT)
    for _ in range(STEPS):
        mbarrier.wait(full.index(stage), phase)
        if EACH:
            part, scale = _block(PART, 0, BOXES, PARTS, EACH, rows_A, weights, scales, stage, part, LAYOUT)
            if BOXES == 2:
                left += part * scale
                part, scale = _block(PART, 1, BOXES, PARTS, EACH, rows_A, weights, scales, stage, part, LAYOUT)
            mbarrier.arrive(empty.index(stage))
            right += part * scale
        else:
            if BOXES == 2:
                left, left_scale = _block(PART, 0, BOXES, PARTS, EACH, rows_A, weights, scales, stage, left, LAYOUT)
            right, right_scale = _block(
                PART, BOXES - 1, BOXES, PARTS, EACH, rows_A, weights, scales, stage, right, LAYOUT
            )
            mbarrier.arrive(empty.index(stage))
        stage, phase = _advance(stage, phase, STAGES)
    if not EACH:
        left *= left_scale
        right *= right_scale
    return left, right, stage, phase


@gluon.jit
def _store_codes(
    out_desc, out_scales, staging, out, row, column, COLUMNS: gl.constexpr, BLOCK: gl.constexpr,
    H_STATIC: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """`out` in e4m3 with one scale a row, or the static one; columns past the end do not count."""
    if COLUMNS % BLOCK != 0:
        at = column + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, LAYOUT))
        out = gl.where((at < COLUMNS)[None, :], out, 0.0)
    own = row + gl.arange(0, 64, layout=gl.SliceLayout(1, LAYOUT))
    if H_STATIC:
        scale = gl.load(out_scales + gl.zeros_like(own))
    else:
        scale = scale_of(out, 1)
        gl.store(out_scales + column // BLOCK * out_desc.shape[0] + own, scale)
    _store(out_desc, staging, to_e4m3(out, scale[:, None]), row, column)


@gluon.jit
def _store_values(out_desc, staging, out, row, column, BLOCK: gl.constexpr):
    """`out` in boxes of its columns or of half of them."""
    BOX: gl.constexpr = out_desc.block_type.shape[1]
    if BOX == BLOCK:
        _store(out_desc, staging, out, row, column)
    else:
        # Halves are halves of each thread's registers: nothing moves.
        left, right = gl.split(out.reshape((64, 2, BOX)).permute((0, 2, 1)))
        _store(out_desc, staging, left, row, column)
        _store(out_desc, staging, right, row, column + BOX)


@gluon.jit
def _finish(
    gate, up, factors, bias, out_desc, out_scales, staging, expert, row, column,
    COLUMNS: gl.constexpr, PASSES: gl.constexpr, BLOCK: gl.constexpr, H_STATIC: gl.constexpr, LAYOUT: gl.constexpr,
    KIND: gl.constexpr, ALPHA: gl.constexpr, BETA: gl.constexpr, CLAMP: gl.constexpr, AFTER: gl.constexpr,
):  # fmt: skip
    """Scales of weight rows, bias, activation and store of the output columns from `column` on."""
    first = expert * PASSES * COLUMNS
    if factors is not None:
        gate *= _bias(factors, first, column, COLUMNS, LAYOUT, BLOCK)
        if PASSES == 2:
            up *= _bias(factors, first + COLUMNS, column, COLUMNS, LAYOUT, BLOCK)
    if bias is not None:
        gate += _bias(bias, first, column, COLUMNS, LAYOUT, BLOCK)
        if PASSES == 2:
            up += _bias(bias, first + COLUMNS, column, COLUMNS, LAYOUT, BLOCK)
    out = activate(gate, up if PASSES == 2 else gate, KIND, ALPHA, BETA, CLAMP, AFTER)
    if out_scales is None:
        _store_values(out_desc, staging, out, row, column, BLOCK)
    else:
        _store_codes(out_desc, out_scales, staging, out, row, column, COLUMNS, BLOCK, H_STATIC, LAYOUT)


@gluon.jit
def _consume(
    PART: gl.constexpr, factors, bias, out_desc, out_scales, rows_A, weights, scales, staging, parked, full, empty,
    board, posted, taken,
    COLUMNS: gl.constexpr, PASSES: gl.constexpr, BOXES: gl.constexpr, PARTS: gl.constexpr, STEPS: gl.constexpr,
    BLOCK: gl.constexpr, STAGES: gl.constexpr, EACH: gl.constexpr, H_STATIC: gl.constexpr,
    KIND: gl.constexpr, ALPHA: gl.constexpr, BETA: gl.constexpr, CLAMP: gl.constexpr, AFTER: gl.constexpr,
):  # fmt: skip
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK, 32])
    PARKS: gl.constexpr = PARTS == 3 and PASSES == 2
    own = staging.index(2 * PART if PARKS else PART)
    stage, phase, tile = 0, 0, 0
    expert, row, rows, column = take(board, posted, taken, tile)
    while rows > 0:
        if rows > 64 * PART:
            left, right, stage, phase = _multiply(
                PART, BOXES, PARTS, EACH, rows_A, weights, scales, full, empty, stage, phase, STEPS, STAGES, BLOCK,
                LAYOUT,
            )  # fmt: skip
            first, own_row = column * (BOXES * BLOCK), row + 64 * PART
            if BOXES == 2:
                _finish(
                    left, left, factors, bias, out_desc, out_scales, own, expert, own_row, first,
                    COLUMNS, PASSES, BLOCK, H_STATIC, LAYOUT, KIND, ALPHA, BETA, CLAMP, AFTER,
                )  # fmt: skip
                first += BLOCK
            up = right
            if PASSES == 2:
                if PARKS:  # three consumers' registers have no room for gate beside up and a product
                    tma.store_wait(0)
                    parked.index(PART).store(right.to(gl.bfloat16))
                left, up, stage, phase = _multiply(
                    PART, BOXES, PARTS, EACH, rows_A, weights, scales, full, empty, stage, phase, STEPS, STAGES, BLOCK,
                    LAYOUT,
                )  # fmt: skip
                if PARKS:
                    right = parked.index(PART).load(LAYOUT).to(gl.float32)
            if first < COLUMNS:
                _finish(
                    right, up, factors, bias, out_desc, out_scales, own, expert, own_row, first,
                    COLUMNS, PASSES, BLOCK, H_STATIC, LAYOUT, KIND, ALPHA, BETA, CLAMP, AFTER,
                )  # fmt: skip
        else:
            # Nothing here for this consumer, but `empty` counts all.
            for _ in range(PASSES * STEPS):
                mbarrier.wait(full.index(stage), phase)
                mbarrier.arrive(empty.index(stage))
                stage, phase = _advance(stage, phase, STAGES)
        tile += 1
        expert, row, rows, column = take(board, posted, taken, tile)
    tma.store_wait(0)


@gluon.jit
def grouped_fp8_gemm(
    x, x_scales, w_desc, w_scales, factors, bias, out_desc, out_scales, tile_expert, tile_row, tile_rows, num_tiles,
    turns,
    K: gl.constexpr, COLUMNS: gl.constexpr, PASSES: gl.constexpr, BOXES: gl.constexpr, PARTS: gl.constexpr,
    BLOCK: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr, W_BLOCKS: gl.constexpr, SCALED: gl.constexpr,
    STATIC: gl.constexpr, H_STATIC: gl.constexpr, PDL: gl.constexpr,
    KIND: gl.constexpr, ALPHA: gl.constexpr, BETA: gl.constexpr, CLAMP: gl.constexpr, AFTER: gl.constexpr,
):  # fmt: skip
    """``out[r] = activate(rows[r] @ w[expert of r].T + bias)`` for tiles of up to 64 rows for each of `PARTS` (2, 3)
    consumers, and `BOXES` (1, 2) blocks of columns.

    `x` describes e4m3 rows ``[R, K]`` in boxes of 64, `w_desc` the weights ``[experts, K / BLOCK, rows, BLOCK]`` as one
    matrix of `BLOCK` columns in boxes of as many rows. Of the rows there are `PASSES` times `COLUMNS`: with 2 those of
    gate come first, and a tile multiplies by the ones, then by the others, one block at a time. Past an expert's last
    row they are of other columns, for output columns that nobody stores. Scales are float32: of rows ``[K / BLOCK, R]``
    where they are `SCALED` by columns, else ``[R]``, or `STATIC` one; of weights one for each block, or unless
    `W_BLOCKS` for each of an expert's `PASSES`, with `factors` of rows beside it. `out` is e4m3 where there are
    `out_scales`, which are as those of rows.
    """
    gl.static_assert(PASSES * BOXES <= 2, "sums of two blocks fit the registers, beside a product")
    gl.static_assert(PARTS * BOXES <= 4, "those of three consumers have room for one")
    if PDL:
        gl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
        gl.inline_asm_elementwise(
            "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
        )  # fmt: skip
    BLOCKS: gl.constexpr = (COLUMNS + BLOCK - 1) // BLOCK
    NUM_COLUMNS: gl.constexpr = (BLOCKS + BOXES - 1) // BOXES
    STEPS: gl.constexpr = (K + BLOCK - 1) // BLOCK
    EACH: gl.constexpr = W_BLOCKS or SCALED > 0
    T: gl.constexpr = w_desc.dtype
    rows_A = gl.allocate_shared_memory(T, [PARTS * STAGES, 64, BLOCK], x.layout)
    weights = gl.allocate_shared_memory(T, [BOXES * STAGES, BLOCK, BLOCK], w_desc.layout)
    # Of `PARTS` times 64 rows, and of blocks of weights.
    scales = gl.allocate_shared_memory(
        gl.float32, [(PARTS + BOXES) * STAGES, 64], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )  # fmt: skip
    if PARTS == 3 and PASSES == 2:
        parked = gl.allocate_shared_memory(gl.bfloat16, [PARTS, 64, BLOCK], gl.SwizzledSharedLayout(8, 1, 8, [1, 0]))
        staging = parked._reinterpret(out_desc.dtype, [2 * PARTS, 64, BLOCK], out_desc.layout)
    else:
        staging = gl.allocate_shared_memory(out_desc.dtype, [PARTS, 64, out_desc.block_type.shape[1]], out_desc.layout)
        parked = staging  # not used
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    board, posted, taken = open_board(PARTS)
    for i in gl.static_range(STAGES):
        # The first of the producer's 32 threads says what to expect; each arrives when its own copies have landed.
        mbarrier.init(full.index(i), count=33)
        mbarrier.init(empty.index(i), count=PARTS)
    # Gluon takes the partitions as they stand here: neither lists nor arguments can be put together beforehand.
    if PARTS == 3:
        gl.warp_specialize(
            [
                (_consume, (
                    0, factors, bias, out_desc, out_scales, rows_A, weights, scales, staging, parked, full, empty,
                    board, posted, taken, COLUMNS, PASSES, BOXES, PARTS, STEPS, BLOCK, STAGES, EACH, H_STATIC, KIND,
                    ALPHA, BETA, CLAMP, AFTER,
                )),
                (_consume, (
                    1, factors, bias, out_desc, out_scales, rows_A, weights, scales, staging, parked, full, empty,
                    board, posted, taken, COLUMNS, PASSES, BOXES, PARTS, STEPS, BLOCK, STAGES, EACH, H_STATIC, KIND,
                    ALPHA, BETA, CLAMP, AFTER,
                )),
                (_consume, (
                    2, factors, bias, out_desc, out_scales, rows_A, weights, scales, staging, parked, full, empty,
                    board, posted, taken, COLUMNS, PASSES, BOXES, PARTS, STEPS, BLOCK, STAGES, EACH, H_STATIC, KIND,
                    ALPHA, BETA, CLAMP, AFTER,
                )),
                (_produce, (
                    x, x_scales, w_desc, w_scales, tile_expert, tile_row, tile_rows, num_tiles, turns, rows_A, weights,
                    scales, full, empty, board, posted, taken, COLUMNS, PASSES, BOXES, PARTS, BLOCKS, STEPS, BLOCK,
                    NUM_COLUMNS, STAGES, GROUP, W_BLOCKS, SCALED, STATIC,
                )),
            ],
            [4, 4, 1],
            [160, 160, 32],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_consume, (
                    0, factors, bias, out_desc, out_scales, rows_A, weights, scales, staging, parked, full, empty,
                    board, posted, taken, COLUMNS, PASSES, BOXES, PARTS, STEPS, BLOCK, STAGES, EACH, H_STATIC, KIND,
                    ALPHA, BETA, CLAMP, AFTER,
                )),
                (_consume, (
                    1, factors, bias, out_desc, out_scales, rows_A, weights, scales, staging, parked, full, empty,
                    board, posted, taken, COLUMNS, PASSES, BOXES, PARTS, STEPS, BLOCK, STAGES, EACH, H_STATIC, KIND,
                    ALPHA, BETA, CLAMP, AFTER,
                )),
                (_produce, (
                    x, x_scales, w_desc, w_scales, tile_expert, tile_row, tile_rows, num_tiles, turns, rows_A, weights,
                    scales, full, empty, board, posted, taken, COLUMNS, PASSES, BOXES, PARTS, BLOCKS, STEPS, BLOCK,
                    NUM_COLUMNS, STAGES, GROUP, W_BLOCKS, SCALED, STATIC,
                )),
            ],
            [4, 1],
            [232, 40],
        )  # fmt: skip
