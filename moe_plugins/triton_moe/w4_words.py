"""Four- and eight-bit weights as 32-bit words, ordered so that they become a tensor core's operand without a shuffle.

A block is 128 columns of a row. Of four-bit codes it is 16 words: words ``2p`` and ``2p + 1`` hold the columns
``16 j + 2p`` and ``16 j + 2p + 1``, in a half each, j = 0 … 3 in the first word and 4 … 7 in the second. A mask then
leaves a pair of neighbouring columns in one register, as the tensor cores want them. Of eight-bit codes a block is 32
words: byte j of word c is column ``32 j + c``.

Scales of groups are words as well, ``[blocks, words of a block, rows]``, so that rows lie together:

- fp4: four bytes, each an unsigned float of 5 bits of exponent, biased by 28, and 3 of mantissa: any product of such a
  scale and an e2m1 code is exact in bfloat16 and in float16;
- fp4 for quantized tokens: as :mod:`~moe_plugins.triton_moe.w4_e4m3` has it, codes too;
- int4: two scales in the type of the activations; with zero points, one scale and above it the zero.

What a mask leaves of an int4 code is a subnormal bfloat16, so that scales in that type are ``2 ** 126`` times
themselves and the least bits are the zero; the weights come out ``2 ** -7`` times themselves, which scales of rows make
up for. In float16 that range is too narrow: there the code becomes the end of 1024's mantissa, and zeros are
``1024 + zero``.
"""

# Kernels are functions of tiles, for which Python has no types; their names are those of the formulas.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from moe_plugins.triton_moe.w4_assembly import scale_asm, unpack_asm, zero_asm
from moe_plugins.triton_moe.w4_e4m3 import FP4_E4M3, pack_quads, unpack_quads

BLOCK: Final = tl.constexpr(128)
"""Columns of a block; rows are padded to whole ones."""
PAIRS: Final = 8
"""Pairs of columns that share a word of four-bit codes."""

FP4: Final = "fp4"
INT4: Final = "int4"
INT4_ZERO: Final = "int4_zero"
"""Four-bit integers with zero points."""
INT8: Final = "int8"
"""Eight-bit integers, scaled by row only."""

SCALE_BIAS: Final = 28
"""Of the exponent of fp4's scale bytes."""
SCALE_MANTISSA: Final = 3

INT4_SCALE: Final = 126
INT4_RESULT: Final = -7
"""Powers of two: of int4's scales in bfloat16, and of the weights that come out."""

# Bit positions in a half of a word, least significant first, of its four codes; from 16 on in the other half. Those of
# fp4 are such that a mask, at most after a shift or a rotation, leaves sign and magnitude where bfloat16 has its sign,
# the end of its exponent and the start of its mantissa; the last code is made of what is left over. Of int4, the first
# and the third code are under masks of the word as it is, and the others are 8 bits higher.
_POSITIONS: Final[Mapping[str, tuple[tuple[int, ...], ...]]] = MappingProxyType(
    {
        FP4: ((6, 7, 8, 15), (2, 3, 4, 11), (12, 13, 14, 21), (0, 1, 10, 9)),
        INT4: tuple(tuple(range(first, first + 4)) for first in (0, 8, 4, 12)),
    }
)


class WordFormat(NamedTuple):
    """What words hold."""

    kind: str
    """One of the names above."""
    group: int
    """Columns that share a scale: 16, 32, 64 or 128; of int8, 128."""

    def meta(self) -> dict[str, object]:
        """As compile-time arguments of the kernels."""
        return {"FORMAT": self.kind, "GROUP": self.group, "PLAIN": bool(triton.knobs.runtime.interpret)}


def num_word_blocks(columns: int) -> int:
    """Blocks of a row."""
    return -(-columns // int(BLOCK.value))


def pack_words(codes: torch.Tensor, kind: str) -> torch.Tensor:
    """Codes uint8 ``[..., N, K]`` as int32 words ``[..., N, blocks * words of a block]``.

    Codes of int8 are biased by 128. Padding is zero bits, of which finite values become.
    """
    *outer, columns = codes.shape
    blocks = num_word_blocks(columns)
    padded = F.pad(codes, (0, blocks * BLOCK.value - columns))
    if kind == INT8:
        by_byte = padded.reshape(*outer, blocks, 4, 32).transpose(-1, -2)
        return by_byte.contiguous().view(torch.int32).flatten(-3)
    if kind == FP4_E4M3:
        return pack_quads(padded)
    by_half = padded.reshape(*outer, blocks, 2, 4, PAIRS, 2).int()  # block, word, code of a half, pair, half
    words = torch.zeros_like(by_half[..., 0, :, 0])
    for code, places in enumerate(_POSITIONS[FP4 if kind == FP4 else INT4]):
        for bit, position in enumerate(places):
            for half in range(2):
                words |= (by_half[..., code, :, half] >> bit & 1) << (position + 16 * half) % 32
    return words.transpose(-1, -2).flatten(-3).contiguous()


@triton.constexpr_function
def scale_words(kind: str, group: int) -> int:
    """Words of scales of a block."""
    per_word = {"fp4": 4, "fp4_e4m3": 4, "int4": 2, "int4_zero": 1}
    return -(-128 // group // per_word[kind]) if kind in per_word else 0


@triton.constexpr_function
def code_words(kind: str) -> int:
    """Words of codes of a block."""
    return 32 if kind == "int8" else 16


@triton.constexpr_function
def _constraints(outputs: int, inputs: int) -> str:
    return ",".join(["=&r"] * outputs + ["r"] * inputs)


@triton.jit
def load_scales(at_N, stride, is_row_N, FORMAT: tl.constexpr, GROUP: tl.constexpr, ALL: tl.constexpr):
    """The words of scales of one block, a tensor ``[N]`` each, four at most, `stride` apart from `at_N` on."""
    COUNT: tl.constexpr = scale_words(FORMAT, GROUP)
    first = tl.full(at_N.shape, 0, tl.int32) if COUNT == 0 else _load_words(at_N, is_row_N, ALL)
    second, third, fourth = first, first, first
    if COUNT > 1:
        second = _load_words(at_N + stride, is_row_N, ALL)
    if COUNT > 2:
        third = _load_words(at_N + 2 * stride, is_row_N, ALL)
        fourth = _load_words(at_N + 3 * stride, is_row_N, ALL)
    return first, second, third, fourth


@triton.jit
def _load_words(pointers, mask, ALL: tl.constexpr):
    return tl.load(pointers) if ALL else tl.load(pointers, mask=mask, other=0)


@triton.jit
def _scale(J: tl.constexpr, words, FORMAT: tl.constexpr, GROUP: tl.constexpr, TYPE: tl.constexpr, PLAIN: tl.constexpr):
    """Scale and zero of the columns ``16 J …`` of a block, ``[N, 1]``: registers, or float32 where `PLAIN`."""
    PER_WORD: tl.constexpr = 4 if FORMAT == "fp4" else 2 if FORMAT == "int4" else 1
    INDEX: tl.constexpr = J * 16 // GROUP
    word = words[INDEX // PER_WORD]
    if PLAIN:
        scale, zero = _plain_scale(word, INDEX % PER_WORD, FORMAT, TYPE)
    else:
        HALF: tl.constexpr = tl.float16 == TYPE
        HIGH: tl.constexpr = FORMAT != "fp4" and J % 4 >= 2
        ASM: tl.constexpr = scale_asm(FORMAT, INDEX % PER_WORD, HALF, HIGH)
        scale = tl.inline_asm_elementwise(ASM, "=&r,r", [word], dtype=tl.int32, is_pure=True, pack=1)
        zero = scale
        if FORMAT != "fp4":
            ZERO_ASM: tl.constexpr = zero_asm(FORMAT, INDEX % PER_WORD, HALF, HIGH)
            zero = tl.inline_asm_elementwise(ZERO_ASM, "=&r,r", [word], dtype=tl.int32, is_pure=True, pack=1)
    return scale[:, None], zero[:, None]


@triton.jit
def _plain_scale(word, INDEX: tl.constexpr, FORMAT: tl.constexpr, TYPE: tl.constexpr):
    zero = tl.full(word.shape, 8.0, tl.float32)
    if FORMAT == "fp4":
        byte = (word >> (8 * INDEX)) & 0xFF
        scale = ((byte << 20) + ((127 - 28) << 23)).to(tl.float32, bitcast=True)
    else:
        scale = (word >> (16 * INDEX)).to(tl.int16).to(TYPE, bitcast=True).to(tl.float32)
        if FORMAT == "int4_zero":
            zero = (word >> 16).to(tl.float32)
            if tl.float16 == TYPE:
                zero = (word >> 16).to(tl.int16).to(TYPE, bitcast=True).to(tl.float32) - 1024.0
        if tl.bfloat16 == TYPE:
            scale = scale * 2.0**-90 * 2.0**-43  # INT4_RESULT - INT4_SCALE in steps that are no subnormal numbers
    return scale, zero


@triton.jit
def dequantize(
    words, scales, N: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr, TYPE: tl.constexpr, PLAIN: tl.constexpr
):
    """Tile ``[N, 128]`` in `TYPE` of the words ``[N, 16 or 32]`` of one block and what :func:`load_scales` gave.

    `PLAIN` has no assembly; it is for Triton's interpreter.
    """
    if FORMAT == "fp4_e4m3":
        codes = unpack_quads(words, scales[0], N, PLAIN).to(TYPE)
    elif FORMAT == "int8":
        v0, v1, v2, v3 = _unpack_int8(words, TYPE, PLAIN)
        codes = tl.permute(tl.join(tl.join(v0, v2), tl.join(v1, v3)), [0, 2, 3, 1])
    else:
        v0, v1, v2, v3, v4, v5, v6, v7 = _unpack_four_bits(words, scales, N, FORMAT, GROUP, TYPE, PLAIN)
        even = tl.join(tl.join(v0, v4), tl.join(v2, v6))
        odd = tl.join(tl.join(v1, v5), tl.join(v3, v7))
        codes = tl.permute(tl.join(even, odd), [0, 2, 3, 4, 1])
    return tl.reshape(codes, [N, 128])


@triton.jit
def _unpack_four_bits(
    words, scales, N: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr, TYPE: tl.constexpr, PLAIN: tl.constexpr
):
    """Columns ``16 j …`` of a block, j = 0 … 7."""
    s0, z0 = _scale(0, scales, FORMAT, GROUP, TYPE, PLAIN)
    s1, z1 = _scale(1, scales, FORMAT, GROUP, TYPE, PLAIN)
    s2, z2 = _scale(2, scales, FORMAT, GROUP, TYPE, PLAIN)
    s3, z3 = _scale(3, scales, FORMAT, GROUP, TYPE, PLAIN)
    s4, z4 = _scale(4, scales, FORMAT, GROUP, TYPE, PLAIN)
    s5, z5 = _scale(5, scales, FORMAT, GROUP, TYPE, PLAIN)
    s6, z6 = _scale(6, scales, FORMAT, GROUP, TYPE, PLAIN)
    s7, z7 = _scale(7, scales, FORMAT, GROUP, TYPE, PLAIN)
    if PLAIN:
        low, high = tl.split(tl.reshape(words, [N, 8, 2]))
        v0 = _plain_code(low, 0, s0, z0, FORMAT, TYPE)
        v1 = _plain_code(low, 1, s1, z1, FORMAT, TYPE)
        v2 = _plain_code(low, 2, s2, z2, FORMAT, TYPE)
        v3 = _plain_code(low, 3, s3, z3, FORMAT, TYPE)
        v4 = _plain_code(high, 0, s4, z4, FORMAT, TYPE)
        v5 = _plain_code(high, 1, s5, z5, FORMAT, TYPE)
        v6 = _plain_code(high, 2, s6, z6, FORMAT, TYPE)
        v7 = _plain_code(high, 3, s7, z7, FORMAT, TYPE)
    else:
        REGISTERS: tl.constexpr = _constraints(8, 34)
        operands = [words, s0, s1, s2, s3, s4, s5, s6, s7, z0, z1, z2, z3, z4, z5, z6, z7]
        # Types of the outputs have to be literal.
        if tl.float16 == TYPE:
            v0, v1, v2, v3, v4, v5, v6, v7 = tl.inline_asm_elementwise(
                unpack_asm(FORMAT, True), REGISTERS, operands, dtype=(tl.float16,) * 8, is_pure=True, pack=2
            )
        else:
            v0, v1, v2, v3, v4, v5, v6, v7 = tl.inline_asm_elementwise(
                unpack_asm(FORMAT, False), REGISTERS, operands, dtype=(tl.bfloat16,) * 8, is_pure=True, pack=2
            )
    return v0, v1, v2, v3, v4, v5, v6, v7


@triton.jit
def _plain_code(words, CODE: tl.constexpr, scale, zero, FORMAT: tl.constexpr, TYPE: tl.constexpr):
    """The columns of code `CODE` of both halves of `words` ``[N, 8]``: ``[N, 16]``."""
    both = tl.join(words, words >> 16)
    if FORMAT == "fp4":
        if CODE == 0:
            magnitude, sign = both >> 6, both >> 15
        elif CODE == 1:
            magnitude, sign = both >> 2, both >> 11
        elif CODE == 2:
            magnitude, sign = both >> 12, tl.join(words >> 16, words) >> 5
        else:
            magnitude, sign = both & 3 | both >> 8 & 4, both >> 9
        value = (((magnitude & 7) << 22) | ((sign & 1) << 31)).to(tl.float32, bitcast=True) * 8.507059173023462e37
    else:
        value = ((both >> (8 * (CODE % 2) + 4 * (CODE // 2))) & 15).to(tl.float32)
    value = tl.reshape(value, [words.shape[0], 16])
    if FORMAT != "fp4":
        value -= zero
    return (value * scale).to(TYPE)


@triton.jit
def _unpack_int8(words, TYPE: tl.constexpr, PLAIN: tl.constexpr):
    if PLAIN:
        v0 = ((words & 0xFF) - 128).to(tl.float32).to(TYPE)
        v1 = (((words >> 8) & 0xFF) - 128).to(tl.float32).to(TYPE)
        v2 = (((words >> 16) & 0xFF) - 128).to(tl.float32).to(TYPE)
        v3 = (((words >> 24) & 0xFF) - 128).to(tl.float32).to(TYPE)
    else:
        if tl.float16 == TYPE:
            v0, v1, v2, v3 = tl.inline_asm_elementwise(
                unpack_asm("int8", True), _constraints(4, 2), [words], dtype=(tl.float16,) * 4, is_pure=True, pack=2
            )
        else:
            v0, v1, v2, v3 = tl.inline_asm_elementwise(
                unpack_asm("int8", False), _constraints(4, 2), [words], dtype=(tl.bfloat16,) * 4, is_pure=True, pack=2
            )
    return v0, v1, v2, v3
