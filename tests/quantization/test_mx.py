"""Microscaling: exponents are exact, whatever the magnitude."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_core.quantization import quantize
from moe_core.quantization.formats import MXFP4, MXFP8
from moe_core.testing.numerics import assert_bitwise_equal

LARGEST = {MXFP4: 6.0, MXFP8: 448.0}
# The distance of neighbouring codes is at most 2 of 6, and 32 of 448.
HALF_STEP = {MXFP4: 1.0, MXFP8: 16.0}
BOTH = pytest.mark.parametrize("format_", LARGEST, ids=str)


def bytes_of(format_, magnitudes):
    """Scale bytes of blocks with these maxima."""
    x = torch.zeros(len(magnitudes), 32)
    x[:, 5] = torch.as_tensor(magnitudes)
    return quantize(x, format_).scale.view(torch.uint8).flatten().tolist()


@BOTH
def test_the_scale_changes_just_above_the_largest_value(format_):
    exponents = range(-126, 119)
    limits = torch.tensor([LARGEST[format_] * 2.0**e for e in exponents])
    expected = [127 + e for e in exponents]
    assert bytes_of(format_, limits) == expected
    assert bytes_of(format_, -limits) == expected
    assert bytes_of(format_, limits.nextafter(torch.tensor(0.0))) == expected
    assert bytes_of(format_, limits.nextafter(torch.tensor(math.inf))) == [1 + byte for byte in expected]


@BOTH
def test_subnormal_blocks_take_the_least_scale(format_):
    assert bytes_of(format_, [2.0**-149, 2.0**-140, 2.0**-127]) == [0, 0, 0]


@BOTH
def test_zeros_have_byte_zero(format_):
    quantized = quantize(torch.zeros(2, 64), format_)
    assert quantized.scale.view(torch.uint8).tolist() == [[0, 0], [0, 0]]
    assert quantized.data.view(torch.uint8).count_nonzero() == 0
    assert_bitwise_equal(quantized.dequantize(), torch.zeros(2, 64))


@BOTH
def test_the_largest_float_does_not_overflow(format_):
    largest = torch.finfo(torch.float32).max
    last, infinite = bytes_of(format_, [largest, math.inf])
    assert last == infinite < 255


@BOTH
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 100).map(lambda k: 2 * k), st.integers(-100, 100), st.integers(0, 99))
def test_the_error_is_half_a_step_and_a_second_time_changes_nothing(format_, rows, columns, exponent, seed):
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 2.0**exponent
    quantized = quantize(x, format_)
    assert quantized.misfits("w", format_, x.shape) == []
    found = quantized.dequantize()
    scale = quantized.scale.float().repeat_interleave(32, dim=-1)[:, :columns]
    assert ((found - x).abs() <= HALF_STEP[format_] * scale).all()
    assert_bitwise_equal(quantize(found, format_).dequantize(), found)


def test_codes_of_a_block_by_hand():
    x = torch.tensor([[6.0, -5.0, 3.0, 0.25, 0.26, -0.1, 12.0, 0.0]])
    quantized = quantize(x, MXFP4)
    assert quantized.scale.float().item() == 2.0
    assert quantized.dequantize().tolist() == [[6, -4, 3, 0, 0, 0, 12, 0]]
    assert quantized.data.tolist() == [[0xC5, 0x03, 0x80, 0x07]]


@BOTH
def test_a_nan_spoils_its_block_and_no_other(format_):
    x = torch.ones(1, 64)
    x[0, 3] = torch.nan
    assert quantize(x, format_).dequantize().isnan().tolist() == [[True] * 32 + [False] * 32]
