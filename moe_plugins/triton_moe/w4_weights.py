"""Experts with four- or eight-bit weights and finer activations, as the kernels read them: made once, at load.

The scale of a row's groups is split: a power of two per row, in float32, which multiplies the accumulator, and what
is left per group, at most one, which multiplies the codes as they are unpacked.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional as F

from moe_core.quantization import Element, Format, QuantizedTensor, ScaleType, unpack
from moe_core.quantization.formats import MXFP4
from moe_core.weights import ExpertWeights
from moe_plugins.triton_moe.quant_shares import from_whole_blocks
from moe_plugins.triton_moe.w4_e4m3 import FP4_E4M3, GROUP, TOP, fold
from moe_plugins.triton_moe.w4_words import (
    BLOCK,
    FP4,
    INT4,
    INT4_RESULT,
    INT4_SCALE,
    INT4_ZERO,
    INT8,
    SCALE_BIAS,
    SCALE_MANTISSA,
    WordFormat,
    num_word_blocks,
    pack_words,
)


class W4Matrix(NamedTuple):
    """A matrix ``[N, K]`` per expert; B = ceil(K / 128) blocks. ``w = code * group scale * row scale``."""

    words: torch.Tensor
    """int32 ``[L, B, N, 16]`` (of int8: 32): what a tile of rows needs of a block lies together, so that memory is read
    in runs of kilobytes."""
    scales: torch.Tensor
    """int32 ``[L, B, S, N]``, S scale words of a block; empty for int8."""
    row_scale: torch.Tensor
    """float32 ``[L, N]``."""


class W4Weights(NamedTuple):
    """The experts of one rank; L local experts, G is 2 * I when gated (gate's rows first), else I."""

    fc1: W4Matrix
    """``[G, H]``"""
    w2: W4Matrix
    """``[H, I]``"""
    b1: torch.Tensor | None
    """``[L, G]``, in the type of the activations."""
    b2: torch.Tensor | None
    """``[L, H]``"""
    gated: bool
    format: WordFormat

    @property
    def sizes(self) -> tuple[int, int, int]:
        """L, H and I."""
        num_local, width = self.fc1.row_scale.shape
        return num_local, self.w2.row_scale.shape[1], width // 2 if self.gated else width


def word_format(format_: Format, has_zero: bool, *, e4m3: bool = False) -> WordFormat:
    """How matrices of `format_` are laid out, `e4m3` beside tokens of that type.

    Raises ``ValueError`` for those that are not.
    """
    rows, columns = format_.block
    if e4m3:
        if format_ == MXFP4:
            return WordFormat(FP4_E4M3, GROUP)
        raise ValueError(f"found {format_}; beside tokens in e4m3 needed {MXFP4}")
    match format_.element, format_.scale:
        case Element.E2M1, (ScaleType.UE8M0 | ScaleType.E4M3) if rows == 1 and columns in (16, 32):
            return WordFormat(FP4, columns)
        case Element.INT8, ScaleType.FLOAT if (rows, columns) == (1, None):
            return WordFormat(INT8, BLOCK.value)
        case Element.INT4, ScaleType.FLOAT if rows == 1:
            if columns in (32, 64):
                return WordFormat(INT4_ZERO if has_zero else INT4, columns)
            if columns is None or columns % BLOCK.value == 0:
                return WordFormat(INT4_ZERO if has_zero else INT4, BLOCK.value)
    raise ValueError(
        f"found {format_}; needed e2m1 in groups of 16 or 32, int4 in groups of 32, 64 or a multiple of 128, or int8 "
        "with a scale per row"
    )


def prepare_w4(weights: ExpertWeights, dtype: torch.dtype, *, e4m3: bool = False) -> W4Weights:
    """`weights`, quantized, for activations of `dtype`: bfloat16 or float16, and with `e4m3` for those that were
    rounded to it.

    int4 scales are rounded to `dtype`. Groups of fp4 whose scale is below ``2 ** -28`` of the largest of their row
    count as zero; with `e4m3`, those below ``2 ** -11`` of it are rounded to multiples of half that.
    """
    weights = from_whole_blocks(weights)
    fc1 = [part for part in (weights.w1_EIH, weights.w3_EIH) if part is not None]
    biases = [part for part in (weights.b1_EI, weights.b3_EI) if part is not None]
    matrices = [part for part in (*fc1, weights.w2_EHI) if isinstance(part, QuantizedTensor)]
    if len(matrices) <= len(fc1):
        raise TypeError("found a matrix that is not quantized, needed quantized ones")
    formats = {word_format(matrix.format, matrix.zero is not None, e4m3=e4m3) for matrix in matrices}
    if len(formats) > 1:
        raise ValueError(f"found matrices of different formats: {sorted(formats)}; needed one")
    (words,) = formats
    halves = [prepare_matrix(matrix, words, dtype) for matrix in matrices[:-1]]
    return W4Weights(
        fc1=_stacked(halves),
        w2=prepare_matrix(matrices[-1], words, dtype),
        b1=torch.cat([bias.to(dtype) for bias in biases], dim=-1) if biases else None,
        b2=None if weights.b2_EH is None else weights.b2_EH.to(dtype, copy=True).contiguous(),
        gated=len(fc1) == 2,
        format=words,
    )


def prepare_matrix(matrix: QuantizedTensor, words: WordFormat, dtype: torch.dtype) -> W4Matrix:
    """`matrix` ``[L, N, K]``, one expert after another: scratch memory is that of one."""
    experts = [_prepare_expert(matrix[e], words, dtype) for e in range(len(matrix))]
    return W4Matrix(*(torch.stack(parts) for parts in zip(*experts, strict=True)))


def _stacked(halves: list[W4Matrix]) -> W4Matrix:
    if len(halves) == 1:
        return halves[0]
    words, scales, row_scale = zip(*halves, strict=True)
    return W4Matrix(torch.cat(words, dim=2), torch.cat(scales, dim=-1), torch.cat(row_scale, dim=1))


def _prepare_expert(matrix: QuantizedTensor, words: WordFormat, dtype: torch.dtype) -> W4Matrix:
    rows, columns = matrix.shape
    scale = matrix.scale.float()
    if words.kind == INT8:
        codes = matrix.data.view(torch.uint8) ^ 0x80
        empty = torch.empty(num_word_blocks(columns), 0, rows, dtype=torch.int32, device=scale.device)
        return W4Matrix(_by_block(codes, INT8), empty, scale[:, 0])
    codes = unpack(matrix.data)[:, :columns]
    row_scale = _power_of_two(scale.abs().amax(dim=-1))
    groups = _groups(scale / row_scale[:, None], columns, words, matrix.format)
    if words.kind == FP4_E4M3:
        codes, byte = fold(codes, groups)
        row_scale = row_scale * 2.0**-TOP
        scales = byte.contiguous().view(torch.int32)
    elif words.kind == FP4:
        byte, lost = _scale_bytes(groups.abs())
        sign = (groups < 0).to(torch.uint8) << 3  # bytes have none: codes take it
        sign, lost = (part.repeat_interleave(words.group, dim=-1)[:, :columns] for part in (sign, lost))
        codes = (codes ^ sign).masked_fill(lost, 0)
        scales = byte.contiguous().view(torch.int32)
    else:
        zero = None if matrix.zero is None else _groups(matrix.zero.float(), columns, words, matrix.format)
        scales = _float_words(groups, zero, words.group, dtype)
        if dtype is torch.bfloat16:
            row_scale = row_scale * 2.0**-INT4_RESULT
    if matrix.global_scale is not None:
        row_scale = row_scale * matrix.global_scale.float().flatten()
    blocks = num_word_blocks(columns)
    scales = scales.reshape(rows, blocks, -1).permute(1, 2, 0)
    return W4Matrix(_by_block(codes, words.kind), scales.contiguous(), row_scale)


def _by_block(codes: torch.Tensor, kind: str) -> torch.Tensor:
    """Words ``[B, N, 16 or 32]`` of codes ``[N, K]``."""
    rows, columns = codes.shape
    return pack_words(codes, kind).view(rows, num_word_blocks(columns), -1).transpose(0, 1).contiguous()


def _power_of_two(x: torch.Tensor) -> torch.Tensor:
    """The largest power of two that is at most `x`; NaN stays, and zero is one."""
    return torch.ldexp(torch.ones_like(x), torch.frexp(x).exponent - 1).where(x > 0, 1.0).where(~x.isnan(), x)


def _groups(scale: torch.Tensor, columns: int, words: WordFormat, format_: Format) -> torch.Tensor:
    """`scale` per group of `words`, of whole blocks: a wider group is several of them."""
    needed = num_word_blocks(columns) * BLOCK.value // words.group
    width = format_.block[1]
    repeated = scale.repeat_interleave(needed if width is None else width // words.group, dim=-1)[:, :needed]
    return F.pad(repeated, (0, needed - repeated.shape[-1]))


def _scale_bytes(scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`scale`, from zero to less than two, as bytes; and where it is too small to be one."""
    mantissa, exponent = torch.frexp(scale)  # mantissa in [0.5, 1), of at most four bits
    biased = exponent - 1 + SCALE_BIAS
    lost = (scale == 0) | (biased < 0)
    byte = (biased << SCALE_MANTISSA) + ((mantissa * 2 - 1) * (1 << SCALE_MANTISSA)).int()
    return byte.masked_fill(lost, 0).to(torch.uint8), lost


def _float_words(scale: torch.Tensor, zero: torch.Tensor | None, group: int, dtype: torch.dtype) -> torch.Tensor:
    """Scales two to a word, or each with its zero; a lone one of a block twice."""
    half = dtype is torch.float16
    codes = (scale if half else scale * 2.0**INT4_SCALE).to(dtype).view(torch.int16)
    if zero is not None:
        zeros = (zero + 1024).to(dtype).view(torch.int16) if half else zero.to(torch.int16)
        pairs = torch.stack([codes, zeros], dim=-1)
    elif group == BLOCK.value:
        pairs = torch.stack([codes, codes], dim=-1)
    else:
        pairs = codes
    return pairs.flatten(1).contiguous().view(torch.int32)
