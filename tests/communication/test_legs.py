"""Which rows are sent where, and which pair reads which answer."""

import torch

from moe_core.communication.legs import legs_of, owners

ENDS = torch.tensor([2, 4, 5], dtype=torch.int32)
SLOTS = torch.tensor([[0, 3], [1, 0], [4, -1], [2, 2], [5, 4]], dtype=torch.int32)


def legs(*, share=None, by_slot=False):
    owner = owners(SLOTS, ENDS)
    return legs_of(owner, SLOTS if by_slot else owner, 3, share=share, is_shared=by_slot)


def test_owners_of_an_uneven_partition_and_of_ids_that_name_no_slot():
    assert owners(SLOTS, ENDS).tolist() == [[0, 1], [0, 0], [2, 3], [1, 1], [3, 2]]
    assert owners(torch.tensor([[-(2**31), 2**31 - 1]], dtype=torch.int32), ENDS).tolist() == [[3, 3]]


def test_a_token_is_sent_once_to_a_rank_in_order_of_rank_and_token():
    found = legs()
    assert found.splits == [2, 2, 2]
    assert found.token_S.tolist() == [0, 1, 0, 3, 2, 4]
    assert found.row_TK.tolist() == [[0, 2], [1, 6], [4, 6], [3, 6], [6, 5]], "the second pair reads nothing: it is in"


def test_shares_are_filled_up():
    found = legs(share=5)
    assert found.splits is None
    nobody = len(SLOTS)
    assert found.token_S.view(3, 5).tolist() == [
        [0, 1, nobody, nobody, nobody],
        [0, 3, nobody, nobody, nobody],
        [2, 4, nobody, nobody, nobody],
    ]
    assert found.row_TK.tolist() == [[0, 5], [1, 15], [10, 15], [6, 15], [15, 11]]


def test_by_slot_a_token_is_sent_to_each_slot_and_a_slot_named_twice_is_read_twice():
    found = legs(by_slot=True)
    assert found.splits == [3, 2, 2]
    assert found.pair_S.tolist() == [0, 2, 3, 1, 6, 4, 9]
    assert found.row_TK.tolist() == [[0, 3], [1, 2], [5, 7], [4, 4], [7, 6]]


def test_no_tokens():
    nobody = torch.empty(0, 2, dtype=torch.int32)
    found = legs_of(owners(nobody, ENDS), nobody, 3, share=None, is_shared=False)
    assert (found.splits, found.row_TK.shape) == ([0, 0, 0], (0, 2))
    filled = legs_of(owners(nobody, ENDS), nobody, 3, share=2, is_shared=False)
    assert filled.pair_S.tolist() == [0] * 6
