"""Rows in order of expert, and back."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from moe_core.permutation import order_by_expert, weighted_sum
from moe_core.testing.numerics import assert_bitwise_equal, assert_close

IDS = torch.tensor([[5, 2], [3, -1], [2, 4], [9, 3]], dtype=torch.int32)


def test_pairs_are_sorted_by_local_slot_and_foreign_ones_come_last():
    order = order_by_expert(IDS, 2, 5)
    assert order.slot_R.tolist() == [0, 0, 1, 1, 2, 3, 3, 3]
    assert order.pair_R.tolist() == [1, 4, 2, 7, 5, 0, 3, 6]
    assert order.token_R.tolist() == [0, 2, 1, 3, 2, 0, 1, 3]
    assert order.end_L.tolist() == [2, 4, 5]
    assert order.end_L.dtype is torch.int32
    assert order.is_local_TK.tolist() == [[False, True], [True, False], [True, True], [False, True]]


def test_slots_that_nobody_chose_are_empty():
    assert order_by_expert(IDS, 6, 9).end_L.tolist() == [0, 0, 0]
    assert order_by_expert(IDS[:0], 0, 3).end_L.tolist() == [0, 0, 0]


def test_foreign_rows_and_scales_may_hold_anything():
    order = order_by_expert(IDS, 2, 5)
    rows = torch.arange(8.0).unsqueeze(-1)
    rows[5:] = torch.nan
    scales = torch.where(order.is_local_TK, 10.0, torch.nan)
    assert weighted_sum(rows, order, scales).tolist() == [[0.0], [20.0], [50.0], [30.0]]


@given(
    tokens=st.integers(0, 9),
    top_k=st.integers(1, 4),
    start=st.integers(0, 5),
    length=st.integers(1, 5),
    seed=st.integers(0, 2**16),
)
def test_going_there_and_back_weighs_every_local_pair_once(tokens, top_k, start, length, seed):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(-2, 10, (tokens, top_k), generator=generator, dtype=torch.int32)
    scales = torch.rand(tokens, top_k, generator=generator)
    order = order_by_expert(ids, start, start + length)
    local = (ids >= start) & (ids < start + length)
    assert_bitwise_equal(order.is_local_TK, local)
    assert order.end_L[-1].item() == local.sum().item()
    value = (ids.flatten()[order.pair_R] + 3.0).unsqueeze(-1)
    expected = (torch.where(local, ids + 3.0, 0.0) * scales).sum(dim=1, keepdim=True)
    assert_close(weighted_sum(value, order, scales), expected, 1e-6)


def test_half_precision_rows_are_summed_in_float32():
    order = order_by_expert(IDS, 0, 10)
    assert weighted_sum(torch.ones(8, 2, dtype=torch.bfloat16), order, torch.ones(4, 2)).dtype is torch.float32
