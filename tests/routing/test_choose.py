"""Choosing experts: ties, and groups."""

import pytest
import torch

from moe_core.contract.vocabulary import GroupScore
from moe_core.routing.choose import keep_best_groups, top_k_lower_id_first


def test_ties_go_to_the_lower_id():
    scores = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    assert top_k_lower_id_first(scores, 3).tolist() == [[1, 2, 4], [0, 1, 2]]


def test_ties_go_to_the_lower_id_among_many():
    assert top_k_lower_id_first(torch.zeros(3, 512), 16).tolist() == [list(range(16))] * 3


@pytest.mark.parametrize(("group_score", "kept"), [(GroupScore.MAX, [0, 1]), (GroupScore.TOP2_SUM, [2, 3])])
def test_a_group_is_scored_by_its_best_or_by_its_two_best(group_score, kept):
    scores = torch.tensor([[0.9, 0.1, 0.6, 0.55]])
    left = keep_best_groups(scores, num_groups=2, topk_group=1, group_score=group_score)
    assert left.isfinite().nonzero()[:, 1].tolist() == kept


def test_groups_of_one_expert_have_no_second_best():
    left = keep_best_groups(torch.tensor([[1.0, 3.0, 2.0]]), 3, 2, GroupScore.TOP2_SUM)
    assert left.tolist() == [[-torch.inf, 3.0, 2.0]]
