"""e2m1 codes with a power of two per group as e4m3, which tensor cores multiply by quantized tokens.

A code and its group's power of two, relative to the largest of the row, are a value of e4m3, exactly: nothing is left
to be done for a group, and the tensor cores add whole rows. e4m3 has normal numbers for twelve powers of two in a row.

A block of 128 columns is 16 words, four neighbours for each thread of a quad p: word ``4 p + j`` holds the columns
``32 j + 4 p + i`` in its low half and ``32 j + 16 + 4 p + i`` in its high one, i = 0 … 3. Magnitudes are nibbles of
three bits, which select bytes; the fourth bits are signs, those of the low half's columns in the odd nibbles.
A word of scales has one byte for each of the four groups of a block: the power of two, from the smallest on.
"""

# Kernels are functions of tiles, for which Python has no types; their names are those of the formulas.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from moe_core.quantization import Element
from moe_core.quantization.elements import decode, encode, pack, unpack

FP4_E4M3: Final = "fp4_e4m3"
GROUP: Final = 32
STEPS: Final = 11
"""Powers of two between the largest and the smallest group of a row."""
TOP: Final = 6
"""Exponent of the largest: ``6 * 2 ** 6`` is the largest product below 448."""


def fold(codes: torch.Tensor, groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes uint8 ``[N, K]`` and bytes of scales for those of groups whose scales are `groups` ``[N, G]``, powers of
    two up to one.

    Groups that are smaller than ``2 ** -STEPS`` get that scale, and their values are rounded to its codes.
    """
    exponent = torch.frexp(groups).exponent - 1 + STEPS
    share = (groups * 2.0**STEPS).clamp(max=1.0).repeat_interleave(GROUP, dim=-1)
    values = decode(Element.E2M1, pack(codes)) * share[:, : codes.shape[1]]
    return unpack(encode(Element.E2M1, values)), exponent.clamp(0, STEPS).to(torch.uint8)


def pack_quads(codes: torch.Tensor) -> torch.Tensor:
    """Codes uint8 ``[..., N, K]``, K whole blocks, as int32 words ``[..., N, K / 8]``."""
    *outer, columns = codes.shape
    by_word = codes.reshape(*outer, columns // 128, 4, 2, 4, 4).int()  # block, j, half, p, i
    half, i = torch.arange(2, device=codes.device)[:, None, None], torch.arange(4, device=codes.device)
    bits = (by_word & 7) << (16 * half + 4 * i) | (by_word >> 3) << (8 * i + 7 - 4 * half)
    words = bits.sum((-3, -1), dtype=torch.int32)  # no two share a bit
    return words.transpose(-1, -2).flatten(-3).contiguous()


@triton.constexpr_function
def _quad_asm() -> str:
    """Four neighbouring words to eight registers of four neighbouring columns each, 0.9 operations a value beside two
    multiplications a word.

    Registers $0 … are the outputs, then the words, then four times the word of scales.
    """
    lines = [".reg .b32 t, u, low, high;"]
    for j in range(4):
        word = f"${8 + j}"
        lines += [
            # The eight magnitudes times the power of two, which adds to the exponents of all but zero.
            f"prmt.b32 t, $12, 0, 0x444{j};",
            "mad.lo.u32 low, t, 0x08080800, 0x14100800;",
            "mad.lo.u32 high, t, 0x08080808, 0x24201C18;",
            f"and.b32 t, {word}, 0x77777777;",
            "prmt.b32 u, low, high, t;",
            f"lop3.b32 ${2 * j}, {word}, 0x80808080, u, 0xEA;",
            "shr.u32 t, t, 16;",
            "prmt.b32 u, low, high, t;",
            f"shl.b32 t, {word}, 4;",
            f"lop3.b32 ${2 * j + 1}, t, 0x80808080, u, 0xEA;",
        ]
    return "{ " + " ".join(lines) + " }"


@triton.jit
def unpack_quads(words, scales, N: tl.constexpr, PLAIN: tl.constexpr):
    """Tile ``[N, 128]`` in e4m3 of the words ``[N, 16]`` of one block and their words of scales ``[N]``.

    `PLAIN` has no assembly; it is for Triton's interpreter.
    """
    if PLAIN:
        tile = _plain(words, scales, N)
    else:
        v0, v1, v2, v3, v4, v5, v6, v7 = tl.inline_asm_elementwise(
            _quad_asm(), "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r,r,r,r,r,r", [words, scales[:, None]],
            dtype=(tl.float8e4nv,) * 8, is_pure=True, pack=4,
        )  # fmt: skip
        even = tl.join(tl.join(v0, v4), tl.join(v2, v6))
        odd = tl.join(tl.join(v1, v5), tl.join(v3, v7))
        tile = tl.reshape(tl.permute(tl.join(even, odd), [0, 2, 3, 4, 1]), [N, 128])
    return tile


@triton.jit
def _plain(words, scales, N: tl.constexpr):
    j = tl.arange(0, 4)
    column = tl.arange(0, 8)  # of a word: half and i
    by_word = tl.reshape(words, [N, 4, 4])[:, :, :, None]
    magnitude = (by_word >> (4 * column)) & 7
    sign = (by_word >> (8 * (column % 4) + 7 - column // 4 * 4)) & 1
    exponent = ((scales[:, None] >> (8 * j)[None, :]) & 0xFF)[:, None, :, None]
    # Exponent and mantissa of e2m1 as those of float32: 2 ** 126 is missing, and the row's factor has 2 ** -5.
    value = ((magnitude << 22) | (sign << 31)).to(tl.float32, bitcast=True) * 8.507059173023462e37
    value *= ((exponent + (127 - 5)) << 23).to(tl.float32, bitcast=True)
    by_half = tl.reshape(value, [N, 4, 4, 2, 4])  # p, j, half, i
    return tl.reshape(tl.permute(by_half, [0, 2, 3, 1, 4]), [N, 128]).to(tl.float8e4nv)
