"""From the bytes of checkpoints to those of :class:`moe_core.quantization.QuantizedTensor`.

A function takes one part of one expert's matrix, rows first, and gives the same part as this project holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from moe_core.quantization import pack
from moe_core.quantization.elements import MIDDLE

# AutoAWQ puts element _AWQ_ORDER[i] of eight in nibble i, so element j is in nibble _AWQ_NIBBLES[j].
_AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)
_AWQ_NIBBLES: Final = tuple(map(_AWQ_ORDER.index, range(8)))
_SIGN_BITS: Final = 0x88
"""Of both codes of a byte."""


def same(part: torch.Tensor) -> torch.Tensor:
    """`part` as it is."""
    return part


def as_bytes(part: torch.Tensor) -> torch.Tensor:
    """Codes along K in bytes that a checkpoint calls signed, or in words of eight with the first in the lowest bits."""
    # A transposed row counts as contiguous and is not viewed as bytes all the same; a copy always is.
    return part.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def as_powers(part: torch.Tensor) -> torch.Tensor:
    """Exponent bytes as the powers of two that they stand for."""
    return part.view(torch.float8_e8m0fnu)


def as_float(part: torch.Tensor) -> torch.Tensor:
    """Scales of a float type; powers of two become float32."""
    return part.float() if part.dtype is torch.float8_e8m0fnu else part


def reciprocal(part: torch.Tensor) -> torch.Tensor:
    """The multiplier of a scale that divides."""
    return part.reciprocal()


def words_along_rows(part: torch.Tensor, nibbles: Sequence[int] = range(8)) -> torch.Tensor:
    """Codes, one a byte, ``[N, K]``, of words ``[N / 8, K]`` whose element j of eight is in nibble ``nibbles[j]``."""
    in_bytes = as_bytes(part).view(*part.shape, 4)
    rows = [in_bytes[..., nibble // 2] >> 4 * (nibble % 2) & 0xF for nibble in nibbles]
    return torch.stack(rows, dim=1).flatten(0, 1)


def awq_codes(part: torch.Tensor) -> torch.Tensor:
    """Packed codes of AutoAWQ's words along N."""
    return pack(awq_zeros(part))


def awq_zeros(part: torch.Tensor) -> torch.Tensor:
    """Codes of zero of AutoAWQ's words along N."""
    return words_along_rows(part, _AWQ_NIBBLES)


def gptq_zeros(part: torch.Tensor) -> torch.Tensor:
    """Codes of zero of GPTQ's words along N, which hold one less."""
    return words_along_rows(part) + 1 & 0xF


def signed_pairs(part: torch.Tensor) -> torch.Tensor:
    """Codes of two's complement pairs along K."""
    return as_bytes(part) ^ _SIGN_BITS


def signed_pairs_along_rows(part: torch.Tensor) -> torch.Tensor:
    """Codes of two's complement pairs along N, the even row in the low nibble: ``[N / 2, K]``."""
    pairs = as_bytes(part)
    return pack(torch.stack([pairs & 0xF, pairs >> 4], dim=1).flatten(0, 1) ^ MIDDLE)
