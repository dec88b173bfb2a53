"""Element types of quantized matrices: what their codes stand for, and the codes of given values."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import torch
from torch.nn.functional import embedding

from moe_core.contract.vocabulary import Word


class Element(Word):
    """Type of one code. Four-bit codes lie two in a byte along K, element ``2j`` in the low nibble."""

    E4M3 = "e4m3"
    """OCP float8 e4m3fn: no infinity, largest value 448."""
    E2M1 = "e2m1"
    """OCP float4: the magnitudes of :data:`E2M1_MAGNITUDES`, bit 3 is the sign."""
    INT8 = "int8"
    INT4 = "int4"
    """Code 0 … 15; the value is the code minus a zero point, 8 where none is given. (Two's complement codes become
    these by flipping bit 3.)"""

    @property
    def largest(self) -> float:
        """The largest magnitude that a symmetric scale maps to."""
        return _LARGEST[self]

    @property
    def codes_per_byte(self) -> int:
        """Codes in one byte."""
        return 2 if self in (Element.E2M1, Element.INT4) else 1

    @property
    def storage(self) -> torch.dtype:
        """Element type of the tensor that holds the codes."""
        return _STORAGE.get(self, torch.uint8)


_LARGEST: Final[Mapping[Element, float]] = MappingProxyType(
    {Element.E4M3: 448.0, Element.E2M1: 6.0, Element.INT8: 127.0, Element.INT4: 7.0}
)
_STORAGE: Final[Mapping[Element, torch.dtype]] = MappingProxyType(
    {Element.E4M3: torch.float8_e4m3fn, Element.INT8: torch.int8}
)

MIDDLE: Final = 8
"""The zero point of four-bit integers without zero points."""
E2M1_MAGNITUDES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Halfway between neighbours. Where the upper one has the even mantissa a tie rounds up, which a bound that is one
# float32 step lower says.
_E2M1_BOUNDS: Final = (0.25, 0.75 - 2**-24, 1.25, 1.75 - 2**-23, 2.5, 3.5 - 2**-22, 5.0)
_NIBBLE_VALUES: Final[Mapping[Element, tuple[float, ...]]] = MappingProxyType(
    {
        Element.E2M1: (*E2M1_MAGNITUDES, *(-m for m in E2M1_MAGNITUDES)),
        Element.INT4: tuple(float(code - MIDDLE) for code in range(16)),
    }
)


def encode(element: Element, x: torch.Tensor) -> torch.Tensor:
    """The codes nearest to float32 `x` ``[..., K]``, ties to even, saturated; packed where two share a byte."""
    match element:
        case Element.E4M3:
            return to_e4m3(x)
        case Element.INT8:
            return x.round().clamp(-128, 127).to(torch.int8)
        case Element.INT4:
            return pack((x.round() + MIDDLE).clamp(0, 15).to(torch.uint8))
        case Element.E2M1:
            bounds = torch.tensor(_E2M1_BOUNDS, device=x.device)
            magnitude = torch.bucketize(x.abs(), bounds, out_int32=True)
            return pack((magnitude + 8 * x.signbit()).to(torch.uint8))


def decode(element: Element, data: torch.Tensor) -> torch.Tensor:
    """The values of codes, float32 ``[..., K]``; those of four-bit integers with the zero point :data:`MIDDLE`."""
    values = _NIBBLE_VALUES.get(element)
    if values is None:
        return data.float()
    value = torch.tensor(values, device=data.device)
    # One look-up per byte instead of one per code.
    pair = torch.stack([value.repeat(16), value.repeat_interleave(16)], dim=-1)
    return embedding(data.int(), pair).flatten(-2)


def to_e4m3(x: torch.Tensor) -> torch.Tensor:
    """`x` as e4m3fn: saturated first, since casts of what is too large differ between versions of torch."""
    return x.clamp(-Element.E4M3.largest, Element.E4M3.largest).to(torch.float8_e4m3fn)


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Four-bit `codes` ``[..., K]`` as uint8 ``[..., K / 2]``, the even element in the low nibble."""
    if codes.shape[-1] % 2:
        raise ValueError(f"four-bit codes share bytes: found {codes.shape[-1]} columns, needed an even number")
    return codes[..., 0::2] | codes[..., 1::2] << 4


def unpack(data: torch.Tensor) -> torch.Tensor:
    """The four-bit codes, uint8 ``[..., K]``, of packed `data`."""
    return torch.stack([data & 0xF, data >> 4], dim=-1).flatten(-2)
