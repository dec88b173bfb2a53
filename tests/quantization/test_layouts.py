"""Tiles of scales against the offset of every single byte."""

import pytest
import torch

from moe_core.quantization import ScaleLayout, swizzle, unswizzle
from moe_core.testing.numerics import assert_bitwise_equal

ROWS, COLUMNS = (1, 127, 128, 129), (1, 4, 5, 8)


def offset(layout, m, k, columns):
    if layout is ScaleLayout.LINEAR:
        return m * columns + k
    tiles = -(-columns // 4)
    if layout is ScaleLayout.TILES_8X4:
        return m // 8 * tiles * 32 + k // 4 * 32 + m % 8 * 4 + k % 4
    return m // 128 * tiles * 512 + k // 4 * 512 + m % 32 * 16 + m % 128 // 32 * 4 + k % 4


@pytest.mark.parametrize("layout", ScaleLayout)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("columns", COLUMNS)
def test_every_scale_is_at_its_offset_and_the_rest_is_zero(layout, rows, columns):
    scale = torch.randint(1, 256, (rows, columns), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    tile = {ScaleLayout.LINEAR: 1, ScaleLayout.TILES_8X4: 8, ScaleLayout.TILES_128X4: 128}[layout]
    padded = columns if layout is ScaleLayout.LINEAR else -(-columns // 4) * 4
    expected = torch.zeros(-(-rows // tile) * tile * padded, dtype=torch.uint8)
    for m in range(rows):
        for k in range(columns):
            expected[offset(layout, m, k, columns)] = scale[m, k]
    found = swizzle(scale, layout)
    assert_bitwise_equal(found, expected)
    assert_bitwise_equal(unswizzle(found, layout, rows, columns), scale)


@pytest.mark.parametrize("layout", ScaleLayout)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e8m0fnu])
def test_experts_are_arranged_one_by_one_in_their_own_type(layout, dtype):
    scale = torch.arange(2 * 3 * 9 * 5).to(torch.uint8).view(2, 3, 9, 5).view(dtype)
    found = swizzle(scale, layout)
    assert found.dtype is dtype
    assert_bitwise_equal(found[1, 2], swizzle(scale[1, 2], layout))
    assert_bitwise_equal(unswizzle(found, layout, 9, 5), scale)


@pytest.mark.parametrize("layout", ScaleLayout)
def test_no_rows(layout):
    found = swizzle(torch.zeros(0, 5, dtype=torch.uint8), layout)
    assert found.shape == (0,)
    assert unswizzle(found, layout, 0, 5).shape == (0, 5)
