"""Integers: half a scale of error, zero points, exact zeros."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_core.quantization import Element, Format, ScaleType, quantize, unpack
from moe_core.quantization.formats import INT4_ROWS, INT8_ROWS
from moe_core.testing.numerics import assert_bitwise_equal

GROUPS = Format(Element.INT4, ScaleType.FLOAT, (1, 32))


def random(*shape, seed=0, scale=1.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("format_", [INT8_ROWS, INT4_ROWS, GROUPS], ids=str)
@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(1, 40).map(lambda k: 2 * k), st.floats(1e-8, 1e8), st.integers(0, 99))
def test_the_error_is_half_a_scale_and_codes_come_back(format_, rows, columns, magnitude, seed):
    x = random(rows, columns, seed=seed, scale=magnitude)
    quantized = quantize(x, format_)
    assert quantized.misfits("w", format_, x.shape) == []
    scale = quantized.scale.repeat_interleave(format_.block[1] or columns, dim=1)[:, :columns]
    assert ((quantized.dequantize() - x).abs() <= 0.5 * scale * (1 + 1e-5)).all()
    assert_bitwise_equal(quantize(quantized.dequantize(), format_).data, quantized.data)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 40).map(lambda k: 2 * k), st.floats(-3, 3), st.integers(0, 99))
def test_with_zero_points_the_error_is_one_scale(rows, columns, offset, seed):
    x = random(rows, columns, seed=seed) + offset
    quantized = quantize(x, GROUPS, zero_points=True)
    assert quantized.misfits("w", GROUPS, x.shape) == []
    scale = quantized.scale.repeat_interleave(32, dim=1)[:, :columns]
    assert ((quantized.dequantize() - x).abs() <= scale * (1 + 1e-5)).all()


def test_zero_points_by_hand():
    x = torch.tensor([[-1.0, 14.0, 0.0, 5.4], [3.0, 15.0, 0.0, 1.0], [-15.0, -7.6, 0.0, -1.0]])
    quantized = quantize(x, Format(Element.INT4, ScaleType.FLOAT, (1, 4)), zero_points=True)
    assert quantized.scale.tolist() == [[1.0]] * 3
    assert quantized.zero.tolist() == [[1], [0], [15]]
    assert unpack(quantized.data).tolist() == [[0, 15, 1, 6], [3, 15, 0, 1], [0, 7, 15, 14]]
    assert quantized.dequantize().tolist() == [[-1, 14, 0, 5], [3, 15, 0, 1], [-15, -8, 0, -1]]


def test_without_zero_points_code_8_is_zero():
    quantized = quantize(torch.tensor([[0.0, 7.0, -7.0, 3.4]]), INT4_ROWS)
    assert unpack(quantized.data).tolist() == [[8, 15, 1, 11]]
    assert quantized.dequantize().tolist() == [[0, 7, -7, 3]]


@pytest.mark.parametrize("zero_points", [False, True])
def test_zeros_stay_exact(zero_points):
    x = random(4, 64)
    x[:, ::3] = 0
    x[3] = 0
    found = quantize(x, GROUPS, zero_points=zero_points).dequantize()
    assert found[x == 0].count_nonzero() == 0


def test_only_four_bits_have_zero_points():
    with pytest.raises(ValueError, match="only four-bit integers have zero points: found int8"):
        quantize(torch.ones(2, 2), INT8_ROWS, zero_points=True)
