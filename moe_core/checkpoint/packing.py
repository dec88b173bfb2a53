"""From the bytes of checkpoints to those of :class:`moe_core.quantization.QuantizedTensor`.

A function here takes one part of one expert's matrix, rows first, and gives the same part as this project holds it.
"""

from __future__ import annotations

from typing import Final

import torch

from moe_core.quantization import pack, unpack
from moe_core.quantization.elements import MIDDLE

# AutoAWQ puts element AWQ_ORDER[i] of eight in nibble i, so element j is in nibble _AWQ_NIBBLE[j].
AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)
_AWQ_NIBBLE: Final = [AWQ_ORDER.index(j) for j in range(8)]
_SIGN_BITS: Final = 0x88


def same(part: torch.Tensor) -> torch.Tensor:
    """`part` as it is."""
    return part


def as_bytes(part: torch.Tensor) -> torch.Tensor:
    """Codes that a checkpoint declares as signed bytes."""
    return part.contiguous().view(torch.uint8)


def as_powers(part: torch.Tensor) -> torch.Tensor:
    """Exponent bytes as the powers of two that they stand for."""
    return part.contiguous().view(torch.float8_e8m0fnu)


def as_float(part: torch.Tensor) -> torch.Tensor:
    """Scales of a float format; powers of two become float32."""
    return part.float() if part.dtype is torch.float8_e8m0fnu else part


def reciprocal(part: torch.Tensor) -> torch.Tensor:
    """The multiplier of a scale that divides."""
    return part.reciprocal()


def words(part: torch.Tensor) -> torch.Tensor:
    """Codes from int32 words that hold eight along K, the first in the lowest bits: ``[N, K / 8]``."""
    return part.contiguous().view(torch.uint8)


def words_along_rows(part: torch.Tensor) -> torch.Tensor:
    """Codes, one a byte, ``[N, K]``, from words that hold eight along N, the first in the lowest bits."""
    return unpack(words(part.mT)).mT


def awq_codes(part: torch.Tensor) -> torch.Tensor:
    """Packed codes from AutoAWQ's words along N."""
    return pack(awq_zeros(part))


def awq_zeros(part: torch.Tensor) -> torch.Tensor:
    """Codes of zero from AutoAWQ's words along N."""
    nibbles = words_along_rows(part)
    return nibbles.view(-1, 8, nibbles.shape[1])[:, _AWQ_NIBBLE].flatten(0, 1)


def gptq_zeros(part: torch.Tensor) -> torch.Tensor:
    """Codes of zero from GPTQ's words along N, which hold one less."""
    return words_along_rows(part) + 1 & 0xF


def signed_pairs(part: torch.Tensor) -> torch.Tensor:
    """Codes from two's complement pairs along K."""
    return as_bytes(part) ^ _SIGN_BITS


def signed_pairs_along_rows(part: torch.Tensor) -> torch.Tensor:
    """Codes from two's complement pairs along N, the even row in the low nibble: ``[N / 2, K]``."""
    return pack(unpack(as_bytes(part.mT)).mT.contiguous() ^ MIDDLE)
