"""Device side of :mod:`moe_plugins.triton_moe.w4_gluon`: one persistent kernel, three groups of warps.

A producer fills a ring of stages in shared memory, with tokens and with weights as they are stored. Two consumers, each
one warpgroup with half the weight rows of a tile, unpack their rows into registers, where the tensor cores read them,
and unpack a stage while the tensor cores multiply by the one before. `full` says that a stage's tokens have been
loaded, `empty` that both consumers are done with them; `words_full` and `words_empty` say so of its weights, which are
done with earlier. The ring runs on across tiles.

Weight rows come in quarters of a tile, 32 each. Those of a consumer's two are stacked eight by eight, so that a thread
of the tensor cores has products of both: gate's and up's, where weights are gated.
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
from moe_plugins.triton_moe.grouped_gluon_kernels import _advance
from moe_plugins.triton_moe.w4_gluon_operand import unpack_rows
from moe_plugins.triton_moe.w4_words import scale_words


@gluon.constexpr_function
def _mma(tokens):
    """Layout of ``[64, tokens]`` sums of a consumer."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, tokens, 16])


@gluon.jit
def _load_rows(x, x_extra, rows_X, extra_X, row, rows, k, bar, stage):
    """128 columns of a tile's rows."""
    MAIN: gl.constexpr = x.block_type.nbytes
    EXTRA: gl.constexpr = 0 if x_extra is None else x_extra.block_type.nbytes
    if rows > 128:
        mbarrier.expect(bar, 4 * MAIN + 2 * EXTRA)
    elif rows > 64:
        mbarrier.expect(bar, 4 * MAIN)
    else:
        mbarrier.expect(bar, 2 * MAIN)
    for half in gl.static_range(2):
        at = k + 64 * half
        tma.async_copy_global_to_shared(x, [row, at], bar, rows_X.index(4 * stage + 2 * half))
        if rows > 64:
            tma.async_copy_global_to_shared(x, [row + 64, at], bar, rows_X.index(4 * stage + 2 * half + 1))
        if EXTRA > 0:  # noqa: SIM102 - this is decided by the compiler, the next by the GPU
            if rows > 128:
                tma.async_copy_global_to_shared(x_extra, [row + 128, at], bar, extra_X.index(2 * stage + half))


@gluon.jit
def _produce(
    x, x_extra, words_desc, scales, tile_expert, tile_row, tile_rows, num_tiles_, turns, rows_X, extra_X, words,
    scales_A, full, empty, words_full, words_empty, board, posted, taken,
    ROWS: gl.constexpr, UP: gl.constexpr, BC: gl.constexpr, SCALES: gl.constexpr, STEPS: gl.constexpr,
    NUM_COLUMNS: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    lane = gl.arange(0, 64, layout=gl.BlockedLayout([2], [32], [1], [0]))
    num_tiles = gl.load(num_tiles_)
    stage, phase, tile = 0, 1, 0
    expert, row, rows, column = draw(turns, num_tiles, tile_expert, tile_row, tile_rows, NUM_COLUMNS, GROUP, 1)
    while rows > 0:
        post(board, posted, taken, tile, expert, row, rows, column, 1)
        tile += 1
        next_expert, next_row, next_rows, next_column = expert + 0, row + 0, rows + 0, column + 0
        n = column * BC + lane
        scales_at = scales + expert.to(gl.int64) * (STEPS * SCALES * ROWS) + n
        for b in range(STEPS):
            if b == (STEPS - AHEAD if STEPS > AHEAD else 0):
                next_expert, next_row, next_rows, next_column = draw(
                    turns, num_tiles, tile_expert, tile_row, tile_rows, NUM_COLUMNS, GROUP, 1
                )  # fmt: skip
            mbarrier.wait(words_empty.index(stage), phase)
            bar = words_full.index(stage)
            mbarrier.expect(bar, 2 * words_desc.block_type.nbytes)
            for half in gl.static_range(2):
                w_row = (expert * STEPS + b) * ROWS + column * BC + half * UP
                tma.async_copy_global_to_shared(words_desc, [w_row, 0], bar, words.index(2 * stage + half))
                for s in gl.static_range(SCALES):
                    async_copy.async_copy_global_to_shared(
                        scales_A.index((2 * stage + half) * SCALES + s),
                        scales_at + ((b * SCALES + s) * ROWS + half * UP), n < ROWS - half * UP,
                    )  # fmt: skip
            if SCALES > 0:
                async_copy.mbarrier_arrive(bar, increment_count=False)
            mbarrier.wait(empty.index(stage), phase)
            _load_rows(x, x_extra, rows_X, extra_X, row, rows, b * 128, full.index(stage), stage)
            stage, phase = _advance(stage, phase, STAGES)
        expert, row, rows, column = next_expert, next_row, next_rows, next_column
    post(board, posted, taken, tile, expert, row, rows, column, 1)
    leave(turns, 1)


@gluon.jit
def _start(
    low, high, boxes, stage, acc, NUM: gl.constexpr, FIRST: gl.constexpr, TOKENS: gl.constexpr, BOTH: gl.constexpr
):
    """Have weights multiplied by `TOKENS` tokens of a stage: box `FIRST` of `NUM` of half the columns in `boxes`; if
    `BOTH`, also that of the other half."""
    OPERAND: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=_mma(TOKENS), k_width=2)
    low = gl.convert_layout(low, OPERAND, assert_trivial=True)
    sums = warpgroup_mma(low, boxes.index(2 * NUM * stage + FIRST).permute((1, 0)), acc, is_async=True)
    if BOTH:
        high = gl.convert_layout(high, OPERAND, assert_trivial=True)
        sums = warpgroup_mma(high, boxes.index(2 * NUM * stage + NUM + FIRST).permute((1, 0)), sums, is_async=True)
    return sums


@gluon.jit
def _multiply(
    FIRST: gl.constexpr, SECOND: gl.constexpr, TOKENS: gl.constexpr, EXTRA: gl.constexpr,
    rows_X, extra_X, words, scales, full, empty, words_full, words_empty, stage, phase,
    K: gl.constexpr, STEPS: gl.constexpr, STAGES: gl.constexpr,
    SCALES: gl.constexpr, FORMAT: gl.constexpr, SCALED: gl.constexpr, TYPE: gl.constexpr,
):  # fmt: skip
    """``[64, TOKENS]`` and, of the extra rows, ``[64, 32]`` in float32, and where the ring stands then."""
    NUM: gl.constexpr = 128 // TOKENS
    HAS_HIGH: gl.constexpr = (K - 1) % 128 >= 64
    # Those of 96 rows are among the others; only tiles of 160 have memory for extra ones.
    MORE_NUM: gl.constexpr = 4 if TOKENS == 64 else 1
    MORE_FIRST: gl.constexpr = 2 if TOKENS == 64 else 0
    tokens = rows_X._reinterpret(TYPE, [STAGES * 2 * NUM, TOKENS, 64], rows_X.layout)
    others = rows_X._reinterpret(TYPE, [STAGES * 8, 32, 64], rows_X.layout) if TOKENS == 64 else extra_X
    acc = gl.zeros([64, TOKENS], gl.float32, _mma(TOKENS))
    more = gl.zeros([64, 32], gl.float32, _mma(32))
    mbarrier.wait(words_full.index(stage), phase)
    low, high = unpack_rows(FIRST, SECOND, words, scales, stage, SCALES, FORMAT, SCALED, TYPE)
    mbarrier.arrive(words_empty.index(stage))
    for _ in range(STEPS - 1):
        mbarrier.wait(full.index(stage), phase)
        sums = _start(low, high, tokens, stage, acc, NUM, 0, TOKENS, True)
        if EXTRA:
            more_sums = _start(low, high, others, stage, more, MORE_NUM, MORE_FIRST, 32, True)
        ahead, ahead_phase = _advance(stage, phase, STAGES)
        mbarrier.wait(words_full.index(ahead), ahead_phase)
        next_low, next_high = unpack_rows(FIRST, SECOND, words, scales, ahead, SCALES, FORMAT, SCALED, TYPE)
        # True by now: the assembler would move the unpacking behind the wait for the tensor cores, but for this branch.
        mbarrier.wait(words_full.index(ahead), ahead_phase)
        mbarrier.arrive(words_empty.index(ahead))
        if EXTRA:
            acc, more, low, high, next_low, next_high = warpgroup_mma_wait(
                0, deps=(sums, more_sums, low, high, next_low, next_high)
            )  # fmt: skip
        else:
            acc, low, high, next_low, next_high = warpgroup_mma_wait(0, deps=(sums, low, high, next_low, next_high))
        mbarrier.arrive(empty.index(stage))
        stage, phase, low, high = ahead, ahead_phase, next_low, next_high
    mbarrier.wait(full.index(stage), phase)
    sums = _start(low, high, tokens, stage, acc, NUM, 0, TOKENS, HAS_HIGH)
    if EXTRA:
        more_sums = _start(low, high, others, stage, more, MORE_NUM, MORE_FIRST, 32, HAS_HIGH)
        acc, more = warpgroup_mma_wait(0, deps=(sums, more_sums))
    else:
        acc = warpgroup_mma_wait(0, deps=(sums,))
    mbarrier.arrive(empty.index(stage))
    stage, phase = _advance(stage, phase, STAGES)
    return acc, more, stage, phase


@gluon.jit
def _own_rows(PART: gl.constexpr, column, COLUMNS: gl.constexpr, GATED: gl.constexpr, LAYOUT: gl.constexpr):
    """Weight rows of a consumer's products, in their expert's matrix, and which exist."""
    m = gl.arange(0, 64, layout=LAYOUT)
    quarter, r = m // 8 % 2, m // 16 * 8 + m % 8
    if GATED:
        n = column * 64 + 32 * PART + r
        is_row = n < COLUMNS
        n += quarter * COLUMNS
    else:
        n = column * 128 + 64 * PART + 32 * quarter + r
        is_row = n < COLUMNS
    return n, is_row


@gluon.jit
def _store(out_desc, staging, out, row, rows, column):
    """Up to `rows` rows of `out`, columns first, in boxes of 32; returns before they have left shared memory."""
    NUM: gl.constexpr = out.shape[1]
    tma.store_wait(0)
    boxes = staging._reinterpret(out_desc.dtype, [NUM // 32, 32, 32], staging.layout)
    staging.permute((1, 0)).store(out.to(out_desc.dtype))
    fence_async_shared()
    for i in gl.static_range(NUM // 32):
        if rows > 32 * i:
            tma.async_copy_shared_to_global(out_desc, [row + 32 * i, column], boxes.index(i))


@gluon.jit
def _finish(
    acc, factor, shift, out_desc, staging, row, rows, column,
    TOKENS: gl.constexpr, GATED: gl.constexpr,
    KIND: gl.constexpr, ALPHA: gl.constexpr, BETA: gl.constexpr, CLAMP: gl.constexpr, AFTER: gl.constexpr,
):  # fmt: skip
    """Scale, bias, activation and store of ``[64, TOKENS]`` sums, from output column `column` on."""
    LAYOUT: gl.constexpr = gl.SliceLayout(1, _mma(TOKENS))
    acc *= gl.convert_layout(factor, LAYOUT, assert_trivial=True)[:, None]
    if shift is not None:
        acc += gl.convert_layout(shift, LAYOUT, assert_trivial=True).to(gl.float32)[:, None]
    left, right = gl.split(acc.reshape((4, 2, 8, TOKENS)).permute((0, 2, 3, 1)))
    left, right = left.reshape((32, TOKENS)), right.reshape((32, TOKENS))
    _store(out_desc, staging, activate(left, right, KIND, ALPHA, BETA, CLAMP, AFTER), row, rows, column)
    if not GATED:
        _store(out_desc, staging, activate(right, right, KIND, ALPHA, BETA, CLAMP, AFTER), row, rows, column + 32)


@gluon.jit
def _tile(
    PART: gl.constexpr, TOKENS: gl.constexpr, EXTRA: gl.constexpr,
    row_scale, bias, out_desc, rows_X, extra_X, words, scales, staging, full, empty, words_full, words_empty,
    stage, phase, expert, row, rows, column,
    K: gl.constexpr, COLUMNS: gl.constexpr, GATED: gl.constexpr, ROWS: gl.constexpr, STEPS: gl.constexpr,
    STAGES: gl.constexpr, SCALES: gl.constexpr, FORMAT: gl.constexpr, SCALED: gl.constexpr, TYPE: gl.constexpr,
    KIND: gl.constexpr, ALPHA: gl.constexpr, BETA: gl.constexpr, CLAMP: gl.constexpr, AFTER: gl.constexpr,
):  # fmt: skip
    """Half the columns of a tile of up to `TOKENS` rows, and 32 more if `EXTRA`; where the ring stands then."""
    FIRST: gl.constexpr = PART if GATED else 2 * PART
    SECOND: gl.constexpr = 2 + PART if GATED else 2 * PART + 1
    # Asked for now, needed after the product.
    n, is_row = _own_rows(PART, column, COLUMNS, GATED, gl.SliceLayout(1, _mma(TOKENS)))
    factor = gl.load(row_scale + expert * ROWS + n, mask=is_row, other=0.0)
    shift = None if bias is None else gl.load(bias + expert * ROWS + n, mask=is_row, other=0.0)
    acc, more, stage, phase = _multiply(
        FIRST, SECOND, TOKENS, EXTRA, rows_X, extra_X, words, scales, full, empty, words_full, words_empty,
        stage, phase, K, STEPS, STAGES, SCALES, FORMAT, SCALED, TYPE,
    )  # fmt: skip
    at = column * 64 + 32 * PART if GATED else column * 128 + 64 * PART
    own = staging._reinterpret(TYPE, [2 * 128 // TOKENS, TOKENS, 32], staging.layout).index(PART * (128 // TOKENS))
    _finish(acc, factor, shift, out_desc, own, row, rows, at, TOKENS, GATED, KIND, ALPHA, BETA, CLAMP, AFTER)
    if EXTRA:
        own = staging._reinterpret(TYPE, [8, 32, 32], staging.layout).index(4 * PART)
        _finish(
            more, factor, shift, out_desc, own, row + TOKENS, rows - TOKENS, at, 32, GATED,
            KIND, ALPHA, BETA, CLAMP, AFTER,
        )  # fmt: skip
    return stage, phase


@gluon.jit
def _consume(
    PART: gl.constexpr, row_scale, bias, out_desc, rows_X, extra_X, words, scales, staging, full, empty, words_full,
    words_empty, board, posted, taken,
    K: gl.constexpr, COLUMNS: gl.constexpr, GATED: gl.constexpr, ROWS: gl.constexpr, STEPS: gl.constexpr,
    STAGES: gl.constexpr, SHORT: gl.constexpr,
    EXTRA: gl.constexpr, SCALES: gl.constexpr, FORMAT: gl.constexpr, SCALED: gl.constexpr, TYPE: gl.constexpr,
    KIND: gl.constexpr, ALPHA: gl.constexpr, BETA: gl.constexpr, CLAMP: gl.constexpr, AFTER: gl.constexpr,
):  # fmt: skip
    SHORT_MAIN: gl.constexpr = 64 if SHORT == 96 else SHORT
    stage, phase, tile = 0, 0, 0
    expert, row, rows, column = take(board, posted, taken, tile)
    while rows > 0:
        if rows <= SHORT:
            if SHORT > 0:
                stage, phase = _tile(
                    PART, SHORT_MAIN, SHORT == 96, row_scale, bias, out_desc, rows_X, extra_X, words, scales, staging,
                    full, empty, words_full, words_empty, stage, phase, expert, row, rows, column, K, COLUMNS,
                    GATED, ROWS, STEPS, STAGES, SCALES, FORMAT, SCALED, TYPE, KIND, ALPHA, BETA, CLAMP, AFTER,
                )  # fmt: skip
        elif rows <= 128:
            stage, phase = _tile(
                PART, 128, False, row_scale, bias, out_desc, rows_X, extra_X, words, scales, staging, full, empty,
                words_full, words_empty, stage, phase, expert, row, rows, column, K, COLUMNS, GATED, ROWS, STEPS,
                STAGES, SCALES, FORMAT, SCALED, TYPE, KIND, ALPHA, BETA, CLAMP, AFTER,
            )  # fmt: skip
        elif EXTRA:
            stage, phase = _tile(
                PART, 128, True, row_scale, bias, out_desc, rows_X, extra_X, words, scales, staging, full, empty,
                words_full, words_empty, stage, phase, expert, row, rows, column, K, COLUMNS, GATED, ROWS, STEPS,
                STAGES, SCALES, FORMAT, SCALED, TYPE, KIND, ALPHA, BETA, CLAMP, AFTER,
            )  # fmt: skip
        tile += 1
        expert, row, rows, column = take(board, posted, taken, tile)
    tma.store_wait(0)


@gluon.jit
def grouped_words_gemm(
    x, x_extra, words_desc, scales, row_scale, bias, out_desc, tile_expert, tile_row, tile_rows, num_tiles,
    turns,
    K: gl.constexpr, COLUMNS: gl.constexpr, GATED: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
    SHORT: gl.constexpr, FORMAT: gl.constexpr, SCALED: gl.constexpr, PDL: gl.constexpr,
    KIND: gl.constexpr, ALPHA: gl.constexpr, BETA: gl.constexpr, CLAMP: gl.constexpr, AFTER: gl.constexpr,
):  # fmt: skip
    """``out[r] = activate(rows[r] @ w[expert of r].T + bias)`` for tiles of 128 weight rows and up to 128 rows, or 160.

    `x` describes the rows ``[R, K]`` in boxes of 64, `x_extra` in boxes of 32 if there are tiles of 160. `words_desc`
    describes the words of all experts and blocks as one matrix in boxes of 64 rows: one of gate rows and one of up rows
    when `GATED`, else two neighbours. `out` has boxes of 32 by 32. `FORMAT` and its `SCALED` columns to a scale are
    those of :class:`~moe_plugins.triton_moe.w4_words.WordFormat`.
    """
    if PDL:
        gl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
        gl.inline_asm_elementwise(
            "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
        )  # fmt: skip
    ROWS: gl.constexpr = 2 * COLUMNS if GATED else COLUMNS
    UP: gl.constexpr = COLUMNS if GATED else 64
    BC: gl.constexpr = 64 if GATED else 128
    NUM_COLUMNS: gl.constexpr = (COLUMNS + BC - 1) // BC
    STEPS: gl.constexpr = (K + 127) // 128
    SCALES: gl.constexpr = scale_words(FORMAT, SCALED)
    T: gl.constexpr = x.dtype
    EXTRA: gl.constexpr = x_extra is not None
    WORDS: gl.constexpr = words_desc.block_type.shape[1]
    rows_X = gl.allocate_shared_memory(T, [4 * STAGES, 64, 64], x.layout)
    extra_X = gl.allocate_shared_memory(T, [2 * STAGES if EXTRA else 1, 32, 64], x.layout)
    boxes = gl.allocate_shared_memory(gl.int32, [2 * STAGES, 64, WORDS], words_desc.layout)
    quarters = boxes._reinterpret(gl.int32, [4 * STAGES, 32, WORDS], words_desc.layout)
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    scales_A = gl.allocate_shared_memory(gl.int32, [2 * STAGES * max(SCALES, 1), 64], FLAT)
    quarter_scales = scales_A._reinterpret(gl.int32, [4 * STAGES * max(SCALES, 1), 32], FLAT)
    staging = gl.allocate_shared_memory(T, [8, 32, 32], out_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    words_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    words_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        # The first of the producer's 32 threads says what to expect; each arrives when its own copies have landed.
        mbarrier.init(words_full.index(i), count=33 if SCALES > 0 else 1)
        mbarrier.init(words_empty.index(i), count=2)
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    board, posted, taken = open_board(2)
    gl.warp_specialize(
        [
            (_consume, (
                0, row_scale, bias, out_desc, rows_X, extra_X, quarters, quarter_scales, staging, full, empty,
                words_full, words_empty, board, posted, taken, K, COLUMNS, GATED, ROWS, STEPS, STAGES, SHORT,
                EXTRA, SCALES, FORMAT, SCALED, T, KIND, ALPHA, BETA, CLAMP, AFTER,
            )),
            (_consume, (
                1, row_scale, bias, out_desc, rows_X, extra_X, quarters, quarter_scales, staging, full, empty,
                words_full, words_empty, board, posted, taken, K, COLUMNS, GATED, ROWS, STEPS, STAGES, SHORT,
                EXTRA, SCALES, FORMAT, SCALED, T, KIND, ALPHA, BETA, CLAMP, AFTER,
            )),
            (_produce, (
                x, x_extra, words_desc, scales, tile_expert, tile_row, tile_rows, num_tiles, turns, rows_X, extra_X,
                boxes, scales_A, full, empty, words_full, words_empty, board, posted, taken, ROWS, UP, BC, SCALES,
                STEPS, NUM_COLUMNS, STAGES, GROUP,
            )),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip
