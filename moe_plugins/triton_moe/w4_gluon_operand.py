"""Weights of a stage in shared memory as an operand of the tensor cores in registers, in Gluon."""

# Kernels are functions of tiles, for which Python has no types; their names are those of the formulas.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, attr-defined"
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from moe_plugins.triton_moe.w4_words import dequantize


@gluon.constexpr_function
def _quarter_layout(words):
    """Of words ``[32, words of a block]`` as a thread needs them whose columns of an operand they hold."""
    wide = [[0, 16]] if words == 32 else []
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 8], *wide],
        lane_bases=[[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[8, 0], [16, 0]],
        block_bases=[],
        shape=[32, words],
    )


@gluon.jit
def _quarter(
    QUARTER: gl.constexpr, words, scales, stage,
    SCALES: gl.constexpr, FORMAT: gl.constexpr, SCALED: gl.constexpr, TYPE: gl.constexpr,
):  # fmt: skip
    """32 weight rows of a stage, columns 0 … 63 and 64 … 127 of its block."""
    LAYOUT: gl.constexpr = _quarter_layout(words.shape[2])
    at = (2 * stage + QUARTER // 2) * (2 * SCALES) + QUARTER % 2
    SCALES_LAYOUT: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    s_0 = gl.full([32], 0, gl.int32, SCALES_LAYOUT) if SCALES == 0 else scales.index(at).load(SCALES_LAYOUT)
    s_1, s_2, s_3 = s_0, s_0, s_0
    if SCALES > 1:
        s_1 = scales.index(at + 2).load(SCALES_LAYOUT)
    if SCALES > 2:
        s_2 = scales.index(at + 4).load(SCALES_LAYOUT)
        s_3 = scales.index(at + 6).load(SCALES_LAYOUT)
    tile = dequantize(
        words.index(4 * stage + QUARTER).load(LAYOUT), (s_0, s_1, s_2, s_3), 32, FORMAT, SCALED, TYPE, False
    )  # fmt: skip
    return gl.split(tile.reshape((32, 2, 64)).permute((0, 2, 1)))


@gluon.jit
def _stack(first, second):
    """Two times ``[32, 64]`` as the tensor cores' rows."""
    return gl.join(first, second).reshape((4, 8, 64, 2)).permute((0, 3, 1, 2)).reshape((64, 64))


@gluon.jit
def unpack_rows(
    FIRST: gl.constexpr, SECOND: gl.constexpr, words, scales, stage,
    SCALES: gl.constexpr, FORMAT: gl.constexpr, SCALED: gl.constexpr, TYPE: gl.constexpr,
):  # fmt: skip
    """64 weight rows of a stage, columns 0 … 63 and 64 … 127 of its block, from two quarters of 32.

    They are stacked eight by eight, so that a thread of the tensor cores has products of both quarters.
    """
    low_0, high_0 = _quarter(FIRST, words, scales, stage, SCALES, FORMAT, SCALED, TYPE)
    low_1, high_1 = _quarter(SECOND, words, scales, stage, SCALES, FORMAT, SCALED, TYPE)
    return _stack(low_0, low_1), _stack(high_0, high_1)
