"""Routing methods by worked numbers, and the traps that others fell into."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import RoutingMethodType as Method
from moe_core.routing import route
from moe_core.routing.route import SCORES
from moe_core.testing.numerics import assert_bitwise_equal, assert_close

ALL = (*SCORES, Method.SPARSE_MIXER)
BIASED = (Method.DEEPSEEK_V3, Method.DEEPSEEK_V4, Method.MINIMAX2, Method.MINIMAX3, Method.SQRT_SOFTPLUS)


def problem(method, num_experts, top_k, **fields):
    return MoEProblem(routing=method, num_experts=num_experts, top_k=top_k, **fields)


def assert_routes(method, logits, top_k, ids, weights, bias=None, **fields):
    bias = None if bias is None else torch.tensor(bias)
    actual_ids, actual = route(problem(method, len(logits), top_k, **fields), torch.tensor([logits]), bias)
    assert actual_ids.dtype is torch.int32
    assert actual.dtype is torch.float32
    assert actual_ids.tolist() == [ids]
    assert_close(actual, torch.tensor([weights]), 2e-6)


@pytest.mark.parametrize("method", [Method.DEEPSEEK_V3, Method.MINIMAX2, Method.SIGMOID_RENORM])
def test_the_bias_chooses_and_does_not_weigh(method):
    assert_routes(method, [2.0, 1.0, 0.5, -1.0], 2, [3, 0], [0.233915, 0.766085], bias=[0.0, 0.0, 0.0, 3.0])


@pytest.mark.parametrize("method", [Method.RENORMALIZE, Method.RENORMALIZE_NAIVE])
def test_negative_logits_are_ordinary(method):
    assert_routes(method, [-5.0, -4.0, -3.0, -2.0, -6.0, -7.0], 2, [3, 2], [0.731059, 0.268941])


def test_experts_of_dropped_groups_cannot_win_by_a_negative_bias():
    logits = [0.1, 0.2, 0.3, 0.4, -1.0, -2.0, -3.0, -4.0]
    groups = {"num_expert_groups": 2, "topk_group": 1}
    score = torch.sigmoid(torch.tensor([0.4, 0.3, 0.2]))
    weights = (score / score.sum()).tolist()
    for group_score in ("max", "top2_sum"):
        assert_routes(
            Method.DEEPSEEK_V3, logits, 3, [3, 2, 1], weights, bias=[-1.0] * 8, group_score=group_score, **groups
        )


def test_renormalizing_is_a_choice():
    logits = [2.0, 1.0, 0.0, -1.0]
    assert_routes(Method.DEFAULT, logits, 2, [0, 1], [0.643914, 0.236883])
    assert_routes(Method.RENORMALIZE, logits, 2, [0, 1], [0.731059, 0.268941])
    assert_routes(Method.GROUPED_SOFTMAX, logits, 2, [0, 1], [0.643914, 0.236883])
    assert_routes(Method.GROUPED_SOFTMAX, logits, 2, [0, 1], [0.731059, 0.268941], renormalize=True)


def test_a_single_expert_keeps_its_weight_unless_renormalized():
    assert_routes(Method.DEFAULT, [2.0, 1.0, 0.0, -1.0], 1, [0], [0.643914])
    assert_routes(Method.LLAMA4, [2.0, 1.0, 0.0, -1.0], 1, [0], [0.880797])
    assert_routes(Method.SIGMOID_RENORM, [2.0, 1.0, 0.0, -1.0], 1, [0], [1.0])


@pytest.mark.parametrize(("group_score", "ids"), [("max", [0]), ("top2_sum", [2])])
def test_the_two_group_scores_differ(group_score, ids):
    logits = torch.tensor([0.9, 0.1, 0.6, 0.55]).logit().tolist()
    fields = {"num_expert_groups": 2, "topk_group": 1, "group_score": group_score}
    assert_routes(Method.DEEPSEEK_V3, logits, 1, ids, [1.0], **fields)


@pytest.mark.parametrize("method", ALL)
def test_the_scaling_factor_multiplies_the_weights_alone(method):
    logits = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    ids, weights = route(problem(method, 8, 2), logits)
    scaled_ids, scaled = route(problem(method, 8, 2, routed_scaling_factor=2.5), logits)
    assert scaled_ids.tolist() == ids.tolist()
    assert_bitwise_equal(scaled, weights * 2.5)


@pytest.mark.parametrize("method", [Method.DEEPSEEK_V4, Method.SQRT_SOFTPLUS])
def test_sqrt_softplus(method):
    logits = [1.0, -1.0, 3.0]
    score = torch.nn.functional.softplus(torch.tensor([3.0, -1.0])).sqrt()
    assert_routes(method, logits, 2, [2, 1], (score / score.sum()).tolist(), bias=[0.0, 1.0, 1.0])


def test_a_hashed_router_chooses_by_token_and_weighs_by_score():
    hashed = problem(Method.DEEPSEEK_V4, 4, 2, hashed_routing=True, routed_scaling_factor=2.0)
    table = torch.tensor([[0, 1], [3, 2], [1, 3]], dtype=torch.int32)
    logits = torch.tensor([[5.0, 0.0, 1.0, -1.0], [5.0, 0.0, 1.0, -1.0]])
    ids, weights = route(hashed, logits, None, torch.tensor([1, 2]), table)
    assert ids.tolist() == [[3, 2], [1, 3]]
    score = torch.nn.functional.softplus(logits).sqrt().gather(1, ids.long())
    assert_close(weights, 2 * score / score.sum(dim=1, keepdim=True), 1e-6)


@pytest.mark.parametrize("method", ALL)
def test_ties_go_to_the_lower_id(method):
    ids, _ = route(problem(method, 64, 4), torch.full((3, 64), 0.5))
    assert ids.tolist() == [[0, 1, 2, 3]] * 3


def test_order_survives_where_scores_saturate():
    logits = torch.tensor([[20.0, 40.0, 30.0, 10.0], [-300.0, 0.0, -250.0, -200.0]])
    for method in (Method.LLAMA4, Method.SIGMOID_RENORM, Method.RENORMALIZE):
        ids, weights = route(problem(method, 4, 2), logits)
        assert ids.tolist() == [[1, 2], [1, 3]]
        assert not weights.isnan().any()


@pytest.mark.parametrize("method", [Method.RENORMALIZE, Method.SIGMOID_RENORM, *BIASED])
def test_scores_that_all_underflow_give_no_nan(method):
    _, weights = route(problem(method, 4, 2), torch.full((1, 4), -1000.0))
    assert not weights.isnan().any()


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_logits_are_routed_in_float32(method, dtype):
    logits = torch.randn(16, 32, generator=torch.Generator().manual_seed(1)).to(dtype)
    ids, weights = route(problem(method, 32, 4), logits)
    wide_ids, wide = route(problem(method, 32, 4), logits.float())
    assert ids.tolist() == wide_ids.tolist()
    assert_bitwise_equal(weights, wide)


@pytest.mark.parametrize("method", ALL)
def test_no_tokens(method):
    ids, weights = route(problem(method, 8, 2), torch.empty(0, 8))
    assert ids.shape == weights.shape == (0, 2)


@settings(max_examples=25)
@given(method=st.sampled_from(BIASED), seed=st.integers(0, 2**16), shift=st.floats(-4.0, 4.0))
def test_a_bias_that_changes_no_choice_changes_no_weight(method, seed, shift):
    generator = torch.Generator().manual_seed(seed)
    logits, bias = torch.randn(4, 16, generator=generator), torch.randn(16, generator=generator)
    groups = {"num_expert_groups": 4, "topk_group": 2} if method is Method.DEEPSEEK_V3 else {}
    ids, weights = route(problem(method, 16, 4, **groups), logits, bias)
    moved_ids, moved = route(problem(method, 16, 4, **groups), logits, bias + shift)
    for row in range(4):
        if ids[row].tolist() == moved_ids[row].tolist():
            assert_bitwise_equal(moved[row], weights[row])


@settings(max_examples=25)
@given(method=st.sampled_from(ALL), seed=st.integers(0, 2**16), top_k=st.integers(1, 6))
def test_experts_of_a_token_differ_and_exist(method, seed, top_k):
    logits = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))
    ids, weights = route(problem(method, 6, top_k), logits)
    assert all(len(set(row)) == top_k for row in ids.tolist())
    assert ids.min() >= 0
    assert ids.max() < 6
    assert weights.isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"logits_TE": torch.zeros(2, 5)}, r"router logits are \[2, 5\], needed \[tokens, 4\]"),
        ({"bias_E": torch.zeros(4, dtype=torch.bfloat16)}, "the correction bias is torch.bfloat16"),
        ({"bias_E": torch.zeros(3)}, r"the correction bias is \[3\], needed \[4\]"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        route(problem(Method.DEEPSEEK_V3, 4, 2), **{"logits_TE": torch.zeros(2, 4)} | arguments)


def test_a_hashed_router_needs_ids_and_a_table_that_fits():
    hashed = problem(Method.DEEPSEEK_V4, 4, 2, hashed_routing=True)
    with pytest.raises(ValueError, match="give input_ids_T and table_VK"):
        route(hashed, torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"needed \[vocabulary, 2\]"):
        route(hashed, torch.zeros(2, 4), None, torch.zeros(2, dtype=torch.int64), torch.zeros(9, 3, dtype=torch.int32))


def test_the_sparse_mixer_takes_no_bias():
    with pytest.raises(ValueError, match="no correction bias"):
        route(problem(Method.SPARSE_MIXER, 4, 2), torch.zeros(2, 4), torch.zeros(4))


def test_gradients_reach_the_logits_through_the_weights():
    logits = torch.randn(3, 8, requires_grad=True)
    for method in SCORES:
        _, weights = route(problem(method, 8, 2), logits)
        (gradient,) = torch.autograd.grad(weights.square().sum(), logits)
        assert gradient.isfinite().all()
        assert gradient.count_nonzero() > 0
