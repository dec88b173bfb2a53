"""Device side of :mod:`moe_plugins.triton_moe.fp8_gluon`: one persistent kernel, three groups of warps.

The ring of stages, its barriers and the order of tiles are those of
:mod:`moe_plugins.triton_moe.grouped_gluon_kernels`. The tensor cores sum 128 columns, then the consumer multiplies that
by the scales and adds it to its own sums, while the other consumer has the tensor cores. Scales travel with the stages:
a consumer that read them from memory, even a step ahead, would wait for them before each of its sums.
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
from moe_plugins.triton_moe.grouped_gluon_kernels import _advance, _bias, _place, _store
from moe_plugins.triton_moe.quant_rows import scale_of, to_e4m3


@gluon.jit
def _produce(
    x, x_scales, w_desc, w_scales, tile_expert, tile_row, tile_rows, num_tiles_, rows_A, weights, scales, full, empty,
    COLUMNS: gl.constexpr, PASSES: gl.constexpr, STEPS: gl.constexpr, BLOCK: gl.constexpr, NUM_COLUMNS: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    LAYOUT: gl.constexpr = gl.BlockedLayout([2], [32], [1], [0])
    lane = gl.arange(0, 64, layout=LAYOUT)
    num_tiles = gl.load(num_tiles_)
    num_rows = x.shape[0]
    stage, phase = 0, 1
    first, step = gl.program_id(0), gl.num_programs(0)
    expert, row, rows, column = _place(first, num_tiles, tile_expert, tile_row, tile_rows, NUM_COLUMNS, GROUP)
    for t in range(first, num_tiles * NUM_COLUMNS, step):
        following = _place(t + step, num_tiles, tile_expert, tile_row, tile_rows, NUM_COLUMNS, GROUP)
        for half in range(PASSES):
            w_row = (expert * PASSES + half) * COLUMNS + column * BLOCK
            x_at = x_scales + row + lane
            # One scale, for 64 rows: to a consumer it is another of each row.
            w_at = w_scales + ((expert * PASSES + half) * NUM_COLUMNS + column) * STEPS + gl.zeros_like(lane)
            for k in range(STEPS):
                mbarrier.wait(empty.index(stage), phase)
                bar = full.index(stage)
                if rows > 64:
                    mbarrier.expect(bar, w_desc.block_type.nbytes + 2 * x.block_type.nbytes)
                    tma.async_copy_global_to_shared(x, [row + 64, k * BLOCK], bar, rows_A.index(2 * stage + 1))
                    async_copy.async_copy_global_to_shared(scales.index(3 * stage + 1), x_at + (k * num_rows + 64))
                else:
                    mbarrier.expect(bar, w_desc.block_type.nbytes + x.block_type.nbytes)
                tma.async_copy_global_to_shared(x, [row, k * BLOCK], bar, rows_A.index(2 * stage))
                tma.async_copy_global_to_shared(w_desc, [w_row, k * BLOCK], bar, weights.index(stage))
                async_copy.async_copy_global_to_shared(scales.index(3 * stage), x_at + k * num_rows)
                async_copy.async_copy_global_to_shared(scales.index(3 * stage + 2), w_at + k)
                async_copy.mbarrier_arrive(bar, increment_count=False)
                stage, phase = _advance(stage, phase, STAGES)
        expert, row, rows, column = following


@gluon.jit
def _multiply(
    PART: gl.constexpr, rows_A, weights, scales, full, empty, stage, phase,
    STEPS: gl.constexpr, STAGES: gl.constexpr, BLOCK: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """``[64, BLOCK]`` in float32, and where the ring stands then."""
    ROWS: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    acc = gl.zeros([64, BLOCK], gl.float32, LAYOUT)
    for _ in range(STEPS):
        mbarrier.wait(full.index(stage), phase)
        token = warpgroup_mma(
            rows_A.index(2 * stage + PART), weights.index(stage).permute((1, 0)),
            gl.zeros([64, BLOCK], gl.float32, LAYOUT), use_acc=False, is_async=True,
        )  # fmt: skip
        scale = scales.index(3 * stage + PART).load(ROWS) * scales.index(3 * stage + 2).load(ROWS)
        part = warpgroup_mma_wait(0, deps=(token,))
        mbarrier.arrive(empty.index(stage))
        acc += part * scale[:, None]
        stage, phase = _advance(stage, phase, STAGES)
    return acc, stage, phase


@gluon.jit
def _store_codes(
    out_desc, out_scales, staging, out, row, column, COLUMNS: gl.constexpr, BLOCK: gl.constexpr, LAYOUT: gl.constexpr
):
    """`out` in e4m3 with one scale a row; columns past the end do not count."""
    if COLUMNS % BLOCK != 0:
        at = column * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, LAYOUT))
        out = gl.where((at < COLUMNS)[None, :], out, 0.0)
    scale = scale_of(out, 1)
    own = row + gl.arange(0, 64, layout=gl.SliceLayout(1, LAYOUT))
    gl.store(out_scales + column * out_desc.shape[0] + own, scale)
    _store(out_desc, staging, to_e4m3(out, scale[:, None]), row, column * BLOCK)


@gluon.jit
def _consume(
    PART: gl.constexpr, bias, out_desc, out_scales, tile_expert, tile_row, tile_rows, num_tiles_,
    rows_A, weights, scales, staging, full, empty,
    COLUMNS: gl.constexpr, PASSES: gl.constexpr, STEPS: gl.constexpr, BLOCK: gl.constexpr, NUM_COLUMNS: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr,
    KIND: gl.constexpr, ALPHA: gl.constexpr, BETA: gl.constexpr, CLAMP: gl.constexpr, AFTER: gl.constexpr,
):  # fmt: skip
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK, 32])
    num_tiles = gl.load(num_tiles_)
    stage, phase = 0, 0
    first, step = gl.program_id(0), gl.num_programs(0)
    expert, row, rows, column = _place(first, num_tiles, tile_expert, tile_row, tile_rows, NUM_COLUMNS, GROUP)
    for t in range(first, num_tiles * NUM_COLUMNS, step):
        following = _place(t + step, num_tiles, tile_expert, tile_row, tile_rows, NUM_COLUMNS, GROUP)
        if rows > 64 * PART:
            acc, stage, phase = _multiply(
                PART, rows_A, weights, scales, full, empty, stage, phase, STEPS, STAGES, BLOCK, LAYOUT
            )
            up = acc
            if PASSES == 2:
                up, stage, phase = _multiply(
                    PART, rows_A, weights, scales, full, empty, stage, phase, STEPS, STAGES, BLOCK, LAYOUT
                )
            if bias is not None:
                bias_at = expert * PASSES * COLUMNS
                acc += _bias(bias, bias_at, column * BLOCK, COLUMNS, LAYOUT, BLOCK)
                if PASSES == 2:
                    up += _bias(bias, bias_at + COLUMNS, column * BLOCK, COLUMNS, LAYOUT, BLOCK)
            out = activate(acc, up, KIND, ALPHA, BETA, CLAMP, AFTER)
            if out_scales is None:
                _store(out_desc, staging.index(PART), out, row + 64 * PART, column * BLOCK)
            else:
                _store_codes(
                    out_desc, out_scales, staging.index(PART), out, row + 64 * PART, column, COLUMNS, BLOCK, LAYOUT
                )
        else:
            # Nothing here for the second consumer, but `empty` counts both.
            for _ in range(PASSES * STEPS):
                mbarrier.wait(full.index(stage), phase)
                mbarrier.arrive(empty.index(stage))
                stage, phase = _advance(stage, phase, STAGES)
        expert, row, rows, column = following
    tma.store_wait(0)


@gluon.jit
def grouped_fp8_gemm(
    x, x_scales, w_desc, w_scales, bias, out_desc, out_scales, tile_expert, tile_row, tile_rows, num_tiles,
    K: gl.constexpr, COLUMNS: gl.constexpr, PASSES: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
    GROUP: gl.constexpr, PDL: gl.constexpr,
    KIND: gl.constexpr, ALPHA: gl.constexpr, BETA: gl.constexpr, CLAMP: gl.constexpr, AFTER: gl.constexpr,
):  # fmt: skip
    """``out[r] = activate(rows[r] @ w[expert of r].T + bias)`` for tiles of up to 128 rows and `BLOCK` columns.

    `x` describes e4m3 rows ``[R, K]`` in boxes of 64, `w_desc` the weights of all experts as one matrix of `PASSES`
    times `COLUMNS` rows an expert: with 2 those of gate come first, and a tile multiplies by the ones, then by the
    others. Scales are float32, ``[K / BLOCK, R]`` and one for each block of weights. `out` is e4m3 where there are
    `out_scales`.
    """
    if PDL:
        gl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
        gl.inline_asm_elementwise(
            "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
        )  # fmt: skip
    NUM_COLUMNS: gl.constexpr = (COLUMNS + BLOCK - 1) // BLOCK
    STEPS: gl.constexpr = (K + BLOCK - 1) // BLOCK
    T: gl.constexpr = w_desc.dtype
    rows_A = gl.allocate_shared_memory(T, [2 * STAGES, 64, BLOCK], x.layout)
    weights = gl.allocate_shared_memory(T, [STAGES, BLOCK, BLOCK], w_desc.layout)
    # Of two times 64 rows, and of the weights.
    scales = gl.allocate_shared_memory(gl.float32, [3 * STAGES, 64], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    staging = gl.allocate_shared_memory(out_desc.dtype, [2, 64, BLOCK], out_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        # The first of the producer's 32 threads says what to expect; each arrives when its own copies have landed.
        mbarrier.init(full.index(i), count=33)
        mbarrier.init(empty.index(i), count=2)
    gl.warp_specialize(
        [
            (_consume, (
                0, bias, out_desc, out_scales, tile_expert, tile_row, tile_rows, num_tiles,
                rows_A, weights, scales, staging, full, empty, COLUMNS, PASSES, STEPS, BLOCK, NUM_COLUMNS,
                STAGES, GROUP, KIND, ALPHA, BETA, CLAMP, AFTER,
            )),
            (_consume, (
                1, bias, out_desc, out_scales, tile_expert, tile_row, tile_rows, num_tiles,
                rows_A, weights, scales, staging, full, empty, COLUMNS, PASSES, STEPS, BLOCK, NUM_COLUMNS,
                STAGES, GROUP, KIND, ALPHA, BETA, CLAMP, AFTER,
            )),
            (_produce, (
                x, x_scales, w_desc, w_scales, tile_expert, tile_row, tile_rows, num_tiles,
                rows_A, weights, scales, full, empty,
                COLUMNS, PASSES, STEPS, BLOCK, NUM_COLUMNS, STAGES, GROUP,
            )),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip
