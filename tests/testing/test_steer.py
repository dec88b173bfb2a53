"""Any fact can be given a value, as far as its fields allow."""

import pytest

from moe_core.contract.facts import ABSENT, UNSET
from moe_core.contract.vocabulary import ActivationType, Device, QuantAlgo
from moe_core.testing.boundary import PLAIN
from moe_core.testing.steer import with_fact


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("quant", QuantAlgo.NVFP4),
        ("hidden_size", 4096),
        ("num_experts", 1),
        ("top_k", 40),
        ("num_expert_groups", 8),
        ("topk_group", 4),
        ("activation", ActivationType.SWIGLU_BIAS),
        ("bias", True),
        ("swiglu_gptoss_style", True),
        ("clamp_after_silu", True),
        ("activation_constant_names", ("alpha", "beta")),
        ("is_gated", False),
        ("ep_size", 8),
        ("tp_size", 2),
        ("num_slots", 32),
        ("slots_per_rank", 20),
        ("intermediate_size_per_tp", 96),
        ("fc1_rows_per_tp", 192),
        ("intermediate_groups", 7),
        ("use_dp", True),
        ("smart_router", True),
        ("world_size", 16),
        ("num_nodes", 2),
        ("ranks_per_node", 8),
        ("parallel_size", 3),
        ("memory_needed", 2**40),
        ("device", Device.CPU),
        ("sm", 0),
        ("sm", 100),
        ("package:deep_gemm", "2.1"),
        ("package:torch", ABSENT),
        ("feature:deep_gemm.fp8", True),
        ("flag:SOME_SWITCH", "1"),
        ("flag:SOME_SWITCH", UNSET),
        ("plugin:hello.ready", True),
    ],
)
def test_a_fact_gets_the_value(fact, value):
    start = PLAIN.with_problem(quant=QuantAlgo.FP8_BLOCK_SCALES)
    changed = with_fact(start, fact, value)
    assert changed is not None
    assert changed.facts[fact] == value


@pytest.mark.parametrize(
    ("fact", "value"),
    [("hidden_size", 0), ("num_nodes", 0), ("weight_bytes", 1), ("fc1_rows_per_tp", 3), ("memory_needed", 1)],
)
def test_what_no_field_can_make_so(fact, value):
    assert with_fact(PLAIN, fact, value) is None


def test_sizes_that_follow_are_computed_again():
    spread = with_fact(with_fact(PLAIN, "ep_size", 4), "use_dp", True)
    assert (spread.deployment.parallel_size, spread.deployment.dp_size, spread.deployment.ranks_per_node) == (4, 4, 4)
    assert with_fact(spread, "ranks_per_node", 8).deployment.ep_size == 8


def test_counts_that_contradict_give_way():
    grouped = PLAIN.with_problem(num_experts=64, num_expert_groups=8, topk_group=4, top_k=8)
    assert with_fact(grouped, "num_experts", 12).problem.num_expert_groups is None


def test_a_new_activation_has_its_own_style():
    biased = with_fact(PLAIN, "activation", ActivationType.SWIGLU_BIAS)
    assert biased.problem.swiglu_gptoss_style is True
    assert with_fact(biased, "activation", ActivationType.SWIGLU).problem.swiglu_gptoss_style is False
