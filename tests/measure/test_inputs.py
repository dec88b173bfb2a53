"""Random tokens."""

from itertools import pairwise

import pytest
import torch

from moe_core.measure.inputs import TokenSource, experts_of
from moe_core.routing import RoutingConfig, select_experts
from moe_core.testing.numerics import assert_bitwise_equal, assert_close
from moe_core.testing.problems import small_problem

CPU = torch.device("cpu")


@pytest.mark.parametrize("routing", ["uniform", "zipf"])
def test_tokens_are_what_softmax_routing_makes_of_their_logits(routing):
    problem = small_problem(num_experts=32, top_k=5)
    tokens = TokenSource(problem, CPU, 3, routing).draw(40)
    ids, weights = select_experts(RoutingConfig.of(problem), tokens.logits_TE)
    assert_bitwise_equal(tokens.context.token_selected_slots, ids)
    assert_close(tokens.context.token_final_scales, weights, 1e-6)
    assert all(len(set(row)) == 5 for row in ids.tolist())
    assert bool(tokens.context.x.count_nonzero(dim=1).gt(32).all())


def test_calls_choose_the_experts_that_were_idle_longest():
    source = TokenSource(small_problem(num_experts=64, top_k=4), CPU, 0)
    calls = [set(source.draw(2).ids_TK.flatten().tolist()) for _ in range(8)]
    for before, after in pairwise(calls):
        assert not before & after
    assert set.union(*calls) == set(range(64)) or sum(map(len, calls)) < 64


def test_zipf_prefers_few_experts():
    def most_chosen(routing):
        ids = TokenSource(small_problem(num_experts=64, top_k=2), CPU, 0, routing).draw(500).ids_TK
        return ids.flatten().bincount().max()

    assert most_chosen("zipf") > 4 * most_chosen("uniform")


def test_experts_are_counted():
    tokens = TokenSource(small_problem(num_experts=64, top_k=4), CPU, 0).draw(1)
    assert experts_of(tokens) == 4
