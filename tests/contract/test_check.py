"""The one check across models: every contradiction at once."""

import pytest

from moe_core.contract.check import check
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.partition import expert_partition, expert_start, redundant_experts
from moe_core.contract.problem import MoEProblem
from moe_core.contract.reasons import MoERejectReason

PROBLEM = MoEProblem(num_experts=8, top_k=2, num_attention_heads=64)
WRONG = {
    "sizes do not multiply out": (MoEDeployment(ep_size=4, tp_size=2, parallel_size=16), ["parallel_size"]),
    "dp does not divide": (MoEDeployment(ep_size=8, dp_size=3), ["dp_size"]),
    "more ranks than experts": (MoEDeployment(ep_size=16), ["num_experts"]),
    "too few slots": (MoEDeployment(ep_size=2, num_slots=4, eplb_enabled=True), ["num_slots"]),
    "slots without EPLB": (MoEDeployment(ep_size=2, num_slots=10), ["num_slots"]),
    "heads": (MoEDeployment(ep_size=3), ["num_attention_heads"]),
    "nodes": (MoEDeployment(ep_size=8, num_nodes=3, ranks_per_node=4), ["num_nodes"]),
    "helix": (MoEDeployment(helix_cp=True), ["helix_cp"]),
    "eplb and dwdp": (MoEDeployment(eplb_enabled=True, dwdp_size=4), ["dwdp_size"]),
    "all at once": (
        MoEDeployment(ep_size=16, dp_size=3, helix_cp=True, parallel_size=4),
        ["parallel_size", "dp_size", "num_experts", "helix_cp"],
    ),
}


@pytest.mark.parametrize(("deployment", "facts"), WRONG.values(), ids=WRONG)
def test_contradictions_are_all_found(deployment, facts):
    found = check(PROBLEM, deployment)
    assert [r.fact for r in found] == facts
    for rejection in found:
        assert rejection.reason is MoERejectReason.INVALID_CONFIG
        assert rejection.needed
        assert rejection.hint


def test_router_weights_go_on_the_input_of_one_expert_only():
    weighted = PROBLEM.evolve(apply_router_weight_on_input=True)
    assert [r.fact for r in check(weighted, MoEDeployment())] == ["top_k"]
    assert check(weighted.evolve(top_k=1), MoEDeployment()) == ()


def test_sound_deployments_pass():
    for deployment in (
        MoEDeployment(),
        MoEDeployment(ep_size=8, dp_size=8),
        MoEDeployment(ep_size=2, tp_size=4, dp_size=2),
    ):
        assert check(PROBLEM, deployment) == ()
    assert check(MoEProblem(), MoEDeployment(ep_size=64)) == (), "unknown sizes are not wrong"


@pytest.mark.parametrize(
    ("experts", "ep", "sizes"),
    [(256, 6, (43, 43, 43, 43, 42, 42)), (128, 6, (22, 22, 21, 21, 21, 21)), (8, 8, (1,) * 8), (5, 1, (5,))],
)
def test_partition(experts, ep, sizes):
    assert expert_partition(experts, ep) == sizes
    assert [expert_start(experts, ep, r) for r in range(ep)] == [sum(sizes[:r]) for r in range(ep)]


def test_partition_leaves_no_rank_empty():
    with pytest.raises(ValueError, match="num_experts 4 is less than ep_size 8"):
        expert_partition(4, 8)


@pytest.mark.parametrize(("experts", "ep", "extra"), [(256, 3, 2), (128, 6, 4), (256, 96, 32), (384, 12, 0)])
def test_redundant_experts(experts, ep, extra):
    assert redundant_experts(experts, ep) == extra
