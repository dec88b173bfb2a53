"""Codes and values: every code, every tie, saturation and packing."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_core.quantization.elements import E2M1_MAGNITUDES, Element, decode, encode, pack, unpack
from moe_core.testing.numerics import assert_bitwise_equal

E2M1 = torch.tensor([*E2M1_MAGNITUDES, *(-m for m in E2M1_MAGNITUDES)])
E2M1_TIES = {0.25: 0.0, 0.75: 1.0, 1.25: 1.0, 1.75: 2.0, 2.5: 2.0, 3.5: 4.0, 5.0: 4.0}


def e4m3_value(byte):
    """The value of an e4m3fn byte by the definition of the type."""
    sign, exponent, mantissa = byte >> 7, byte >> 3 & 15, byte & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    magnitude = mantissa / 8 * 2**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -magnitude if sign else magnitude


def values_of(element, x):
    x = torch.tensor(x, dtype=torch.float32)
    return decode(element, encode(element, x)).tolist()


def test_every_code_of_e2m1_comes_back():
    codes = torch.arange(16, dtype=torch.uint8)
    values = decode(Element.E2M1, pack(codes))
    assert_bitwise_equal(values, E2M1)
    assert_bitwise_equal(unpack(encode(Element.E2M1, values)), codes)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("tie", "value"), E2M1_TIES.items())
def test_ties_of_e2m1_go_to_the_even_mantissa_and_nothing_else_does(tie, value, sign):
    lower = max(m for m in E2M1_MAGNITUDES if m < tie)
    upper = min(m for m in E2M1_MAGNITUDES if m > tie)
    at = torch.tensor(tie)
    below, above = (at.nextafter(torch.tensor(to)).item() for to in (0.0, 9.0))
    assert values_of(Element.E2M1, [sign * below, sign * tie, sign * above, 0]) == [
        sign * lower,
        sign * value,
        sign * upper,
        0,
    ]


@settings(max_examples=200, deadline=None)
@given(st.floats(-(2.0**99), 2.0**99, width=32) | st.floats(-7, 7, width=32))
def test_e2m1_is_the_nearest_value(x):
    found, _ = values_of(Element.E2M1, [x, 0])
    assert abs(found - x) == (E2M1.double() - x).abs().min().item()


@pytest.mark.parametrize("x", [6.5, 7.0, 1e30, math.inf])
def test_e2m1_saturates(x):
    assert values_of(Element.E2M1, [x, -x]) == [6, -6]


def test_every_code_of_e4m3_comes_back():
    codes = torch.arange(256, dtype=torch.uint8)
    values = decode(Element.E4M3, codes.view(torch.float8_e4m3fn))
    assert_bitwise_equal(values.nan_to_num(), torch.tensor([e4m3_value(c) for c in range(256)]).nan_to_num())
    assert values.isnan().nonzero().flatten().tolist() == [0x7F, 0xFF]
    assert_bitwise_equal(encode(Element.E4M3, values).view(torch.uint8), codes)


@pytest.mark.parametrize("x", [448.1, 463.9, 464.0, 480.0, 1e30, math.inf])
def test_e4m3_saturates(x):
    assert values_of(Element.E4M3, [x, -x]) == [448, -448]


def test_subnormals_of_e4m3():
    least = 2**-9
    assert values_of(Element.E4M3, [least, 1.5 * least, 2.5 * least, 7.5 * least]) == [
        least, 2 * least, 2 * least, 8 * least,
    ]  # fmt: skip
    assert values_of(Element.E4M3, [least / 2, least / 2 * (1 + 2**-20), 2**-149]) == [0, least, 0]


@settings(max_examples=200, deadline=None)
@given(st.floats(-448, 448, width=32))
def test_e4m3_is_the_nearest_value(x):
    finite = torch.tensor([v for v in map(e4m3_value, range(256)) if not math.isnan(v)])
    [found] = values_of(Element.E4M3, [x])
    assert abs(found - x) == (finite.double() - x).abs().min().item()


def test_every_code_of_the_integers_comes_back():
    codes = torch.arange(-128, 128, dtype=torch.int8)
    assert_bitwise_equal(encode(Element.INT8, decode(Element.INT8, codes)), codes)
    nibbles = pack(torch.arange(16, dtype=torch.uint8))
    assert decode(Element.INT4, nibbles).tolist() == list(range(-8, 8))
    assert_bitwise_equal(encode(Element.INT4, decode(Element.INT4, nibbles)), nibbles)


def test_integers_round_ties_to_even_and_saturate():
    x = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5]
    for element in (Element.INT8, Element.INT4):
        assert values_of(element, x) == [0, 2, 2, 0, -2, -2]
    assert values_of(Element.INT8, [127.5, 1e30, -128.5, -1e30]) == [127, 127, -128, -128]
    assert values_of(Element.INT4, [7.5, 1e30, -8.5, -1e30]) == [7, 7, -8, -8]


def test_twos_complement_becomes_int4_by_flipping_bit_3():
    signed = torch.arange(-8, 8)
    nibbles = pack((signed & 0xF).to(torch.uint8))
    assert decode(Element.INT4, nibbles ^ 0x88).tolist() == signed.tolist()


def test_the_even_element_is_in_the_low_nibble():
    assert pack(torch.tensor([[1, 2, 15, 0]], dtype=torch.uint8)).tolist() == [[0x21, 0x0F]]


@given(st.lists(st.integers(0, 15), max_size=16).filter(lambda codes: len(codes) % 2 == 0))
def test_unpack_undoes_pack(codes):
    codes = torch.tensor([codes, codes], dtype=torch.uint8)
    assert_bitwise_equal(unpack(pack(codes)), codes)


def test_an_odd_number_of_nibbles():
    with pytest.raises(ValueError, match="found 3 columns, needed an even number"):
        pack(torch.zeros(2, 3, dtype=torch.uint8))
