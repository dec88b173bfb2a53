"""Routers for tests and benchmarks: what they choose, and that it is balanced."""

import pytest
import torch

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.problem import MoEProblem
from moe_core.environment import preset
from moe_core.layer import ConfigurableMoE
from moe_core.reference import reference_moe
from moe_core.registry import load_catalog
from moe_core.resolve import resolve_moe_impl
from moe_core.routing import route
from moe_core.testing.numerics import assert_bitwise_equal, assert_close
from moe_core.testing.routers import load_balanced_route, perfect_logits, routed_by, static_route
from moe_core.testing.weights import random_weights

FLAT = ["Default", "Renormalize", "RenormalizeNaive", "Llama4", "MiniMax2", "MiniMax3", "SigmoidRenorm", "DeepSeekV4"]


def problem_of(method, experts=64, top_k=8, **fields):
    return MoEProblem(
        num_experts=experts, top_k=top_k, routing=method, hidden_size=32, intermediate_size=16, quant="NONE", **fields
    )


def chosen(problem, logits):
    ids, weights = route(problem, logits, torch.zeros(problem.num_experts))
    assert torch.isfinite(weights).all()
    return ids.to(torch.int64)


def spread(ids, problem, ranks):
    owners = ids // (problem.num_experts // ranks)
    return torch.bincount(owners.flatten(), minlength=ranks)


@pytest.mark.parametrize("method", FLAT)
@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("num_tokens", [1, 7, 64])
def test_flat_methods_choose_evenly_over_ranks(method, ranks, num_tokens):
    problem = problem_of(method)
    for rank in range(ranks):
        ids = chosen(problem, perfect_logits(problem, num_tokens, ep_size=ranks, ep_rank=rank))
        counts = spread(ids, problem, ranks)
        assert counts.max() - counts.min() <= 1
        assert all(len(set(row.tolist())) == problem.top_k for row in ids), "no expert twice"


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize(("method", "score"), [("DeepSeekV3", "top2_sum"), ("GroupedSoftmax", "max")])
def test_grouped_methods_choose_evenly_within_their_groups(method, score, ranks):
    problem = problem_of(method, num_expert_groups=8, topk_group=4, group_score=score, renormalize=True)
    ids = chosen(problem, perfect_logits(problem, 33, ep_size=ranks))
    counts = spread(ids, problem, ranks)
    assert counts.max() - counts.min() <= 1
    assert all(len({i // 8 for i in row.tolist()}) <= 4 for row in ids)


def test_the_first_token_of_a_small_plan():
    # Owners 1, 0, 1, 0 are due on rank 1 of 2; two groups of two experts may be used.
    problem = problem_of("DeepSeekV3", 8, 4, num_expert_groups=4, topk_group=2, group_score="top2_sum")
    logits = perfect_logits(problem, 1, ep_size=2, ep_rank=1)
    assert logits[0].argsort(descending=True)[:4].tolist() == [7, 0, 6, 1]


@pytest.mark.parametrize(
    ("problem", "sizes", "message"),
    [
        (problem_of("Renormalize", 6, 2), {"ep_size": 4}, "needed equal shares"),
        (problem_of("Renormalize"), {"ep_size": 2, "ep_rank": 2}, "needed equal shares"),
        (problem_of("SparseMixer"), {"ep_size": 2}, "methods that can: DeepSeekV3"),
        (MoEProblem(num_experts=8, routing="Default"), {"ep_size": 2}, "top_k is None"),
    ],
)
def test_what_cannot_be_balanced_is_refused(problem, sizes, message):
    with pytest.raises(ValueError, match=message):
        perfect_logits(problem, 4, **sizes)


def test_load_balanced_pairs_go_round():
    ids, weights = load_balanced_route(2)(torch.zeros(3, 4), None, None, None)
    assert ids.tolist() == [[0, 1], [2, 3], [0, 1]]
    assert weights.tolist() == [[1, 1]] * 3


def test_a_layer_routes_by_what_it_is_given_and_then_by_its_own_again():
    problem = problem_of("Renormalize", 8, 2, bias=False)
    report = resolve_moe_impl(problem, MoEDeployment(environment=preset("cpu")), candidates=load_catalog())
    weights = random_weights(problem)
    x, logits = torch.randn(3, 32).bfloat16(), torch.randn(3, 8)
    ids = torch.tensor([[0, 7], [3, 4], [5, 5]], dtype=torch.int32)
    scales = torch.tensor([[0.5, 2.0], [1.0, -1.0], [0.25, 0.25]])
    with ConfigurableMoE.from_report(report, weights) as layer:
        own = layer(x, logits)
        with routed_by(layer, static_route(ids, scales)):
            assert_close(layer(x, logits), reference_moe(problem, x, weights, ids, scales), 8e-3)
        assert_bitwise_equal(layer(x, logits), own)


def test_static_answers_are_checked():
    with pytest.raises(ValueError, match="needed int32"):
        static_route(torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"needed float32 \[1, 2\]"):
        static_route(torch.zeros(1, 2, dtype=torch.int32), torch.zeros(2, 1))
