"""Blocks against their definition, ragged and empty ones included."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_core.quantization.blocks import amax, float_scale, in_blocks, num_blocks, spread
from moe_core.testing.numerics import assert_bitwise_equal

WIDTHS = st.none() | st.integers(1, 5)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), WIDTHS, WIDTHS, st.integers(0, 2**16))
def test_maxima_and_scales_of_blocks_are_those_of_the_definition(rows, columns, height, width, seed):
    x = torch.randn(2, rows, columns, generator=torch.Generator().manual_seed(seed))
    found = amax(x, (height, width))
    assert found.shape == (2, num_blocks(rows, height), num_blocks(columns, width))
    spread_out = spread(found, (height, width), rows, columns).expand_as(x)
    high, wide = height or rows, width or columns
    for n in range(rows):
        for k in range(columns):
            top, left = n // high * high, k // wide * wide
            block = x[:, top : top + high, left : left + wide].abs()
            assert_bitwise_equal(spread_out[:, n, k], block.amax(dim=(1, 2)))


def test_blocks_are_filled_up_with_zeros():
    assert in_blocks(torch.arange(1.0, 7).view(2, 3), (None, 2)).tolist() == [[[1, 2, 4, 5], [3, 0, 6, 0]]]


@pytest.mark.parametrize(("block", "shape"), [((1, 128), (0, 2)), ((1, None), (0, 1)), ((None, None), (1, 1))])
def test_no_rows(block, shape):
    assert amax(torch.zeros(0, 256), block).shape == shape


def test_a_scale_is_never_zero():
    scale = float_scale(torch.tensor([[0.0, 0.0, 1e-20, 7.0]]), (1, 2), 7.0)
    assert scale.tolist() == [[pytest.approx(1e-10 / 7), 1.0]]
