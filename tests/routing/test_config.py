"""A routing configuration says everything, and contradicts nothing."""

import pytest

from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import GroupScore
from moe_core.contract.vocabulary import RoutingMethodType as Method
from moe_core.routing import RoutingConfig


def config(method, **fields):
    return RoutingConfig.of(MoEProblem(**{"routing": method, "num_experts": 8, "top_k": 2} | fields))


@pytest.mark.parametrize(
    ("method", "renormalizes"),
    [
        (Method.DEFAULT, False),
        (Method.RENORMALIZE, True),
        (Method.RENORMALIZE_NAIVE, True),
        (Method.DEEPSEEK_V3, True),
        (Method.LLAMA4, False),
        (Method.MINIMAX2, True),
        (Method.MINIMAX3, True),
        (Method.SIGMOID_RENORM, True),
        (Method.DEEPSEEK_V4, True),
        (Method.SQRT_SOFTPLUS, True),
        (Method.SPARSE_MIXER, False),
        (Method.GROUPED_SOFTMAX, False),
    ],
)
def test_what_a_method_does_when_the_problem_does_not_say(method, renormalizes):
    assert config(method).renormalize is renormalizes
    assert config(method).scaling_factor == 1.0


def test_groups_are_scored_as_the_family_does_unless_the_problem_says_otherwise():
    groups = {"num_expert_groups": 4, "topk_group": 2}
    assert config(Method.DEEPSEEK_V3, **groups).group_score is GroupScore.TOP2_SUM
    assert config(Method.GROUPED_SOFTMAX, **groups).group_score is GroupScore.MAX
    assert config(Method.DEEPSEEK_V3, **groups, group_score="max").group_score is GroupScore.MAX


def test_deepseek_v4_chooses_from_all_experts():
    assert config(Method.DEEPSEEK_V4, num_expert_groups=4, topk_group=2).num_groups == 1


@pytest.mark.parametrize(
    ("method", "fields", "message"),
    [
        (None, {}, "routing=None"),
        (Method.UNSPECIFIED, {}, "routing=Unspecified"),
        (Method.DEFAULT, {"top_k": None}, "top_k=None"),
        (Method.DEFAULT, {"renormalize": True}, "Default does not renormalize"),
        (Method.RENORMALIZE, {"renormalize": False}, "use Default"),
        (Method.DEEPSEEK_V3, {"num_expert_groups": 4}, "topk_group unknown"),
        (Method.MINIMAX2, {"num_expert_groups": 4, "topk_group": 2}, "does not group experts"),
    ],
)
def test_what_cannot_be_routed_is_an_error(method, fields, message):
    with pytest.raises(ValueError, match=message):
        config(method, **fields)


def test_all_contradictions_are_told_at_once():
    with pytest.raises(ValueError, match="more than num_experts 8") as caught:
        RoutingConfig(Method.DEEPSEEK_V3, num_experts=8, top_k=9, renormalize=True, num_groups=2, topk_group=3)
    assert "more than num_groups 2" in str(caught.value)


def test_more_experts_than_the_kept_groups_hold_are_refused():
    RoutingConfig(Method.DEEPSEEK_V3, num_experts=8, top_k=4, renormalize=True, num_groups=4, topk_group=2)
    with pytest.raises(ValueError, match="top_k is 5, but 2 group"):
        RoutingConfig(Method.DEEPSEEK_V3, num_experts=8, top_k=5, renormalize=True, num_groups=4, topk_group=2)
