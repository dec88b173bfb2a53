"""Tokens into the rows of their pairs."""

import pytest
import torch

from moe_core.testing.numerics import assert_bitwise_equal
from moe_plugins.triton_moe.spread import spread_rows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("width", [8, 144])
def test_spread(width):
    x = torch.randn(3, width).half().to(DEVICE)
    row_of_pair = torch.tensor([4, -1, 0, 2, -1, -1], dtype=torch.int32, device=DEVICE)
    rows = torch.full((5, width), torch.nan, dtype=x.dtype, device=DEVICE)
    spread_rows(x, row_of_pair, 2, rows)
    assert_bitwise_equal(rows[[4, 0, 2]], x[[0, 1, 1]])
    assert rows[[1, 3]].isnan().all()
