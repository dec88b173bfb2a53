"""Tensors side by side as bytes, and out again as they were."""

import pytest
import torch

from moe_core.communication.rows import RowBytes
from moe_core.testing.numerics import assert_bitwise_equal

DTYPES = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.uint8, torch.int32)


@pytest.mark.parametrize("num_rows", [0, 1, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_come_out_as_they_went_in(dtype, num_rows):
    # Three bytes in the middle leave everything behind them unaligned.
    odd = torch.arange(num_rows * 3, dtype=torch.uint8).view(num_rows, 3)
    values = torch.arange(num_rows * 8).view(num_rows, 2, 4).to(dtype)
    scale, ids = torch.rand(num_rows), torch.arange(num_rows * 2, dtype=torch.int32).view(num_rows, 2)
    tensors = (odd, values, None, scale, ids)
    form = RowBytes(tensors)
    packed = form.pack(tensors, ids_at=4)
    order = torch.arange(num_rows).flip(0)
    for found, given in zip(form.unpack(packed[order]), tensors, strict=True):
        if given is None:
            assert found is None
        else:
            assert_bitwise_equal(found, given[order])


def test_the_row_of_nobody_is_zeros_with_an_id_of_minus_one():
    tensors = (torch.full((2, 3), torch.nan), torch.ones(2, 2, dtype=torch.int32))
    form = RowBytes(tensors)
    x, ids = form.unpack(form.pack(tensors, ids_at=1)[[2, 2]])
    assert x.tolist() == [[0.0] * 3] * 2
    assert ids.tolist() == [[-1, -1]] * 2
    x, ids = form.unpack(form.pack(tensors)[[2]])
    assert ids.tolist() == [[0, 0]]


def test_a_column_may_have_any_stride_where_its_width_is_one():
    column = torch.arange(6.0).view(1, 6).t()
    form = RowBytes((column,))
    assert_bitwise_equal(form.unpack(form.pack((column,))[:6])[0], torch.arange(6.0).view(6, 1))
