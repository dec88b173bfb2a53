"""Legal values near a failing one are found by asking again."""

import pytest

from moe_core.contract.declare import MultipleOf, OneOf, Reason, divisible, need, sm_in, whole_groups
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.eligibility import Rejection
from moe_core.contract.facts import facts_of
from moe_core.contract.gates import EVEN_EP
from moe_core.contract.problem import MoEProblem
from moe_core.resolve.neighbours import legal_neighbours

TILE = divisible("intermediate_size_per_tp", 128)
QWEN = MoEProblem(num_experts=128, intermediate_size=768, hidden_size=2048, top_k=8)
CASES = {
    "768 over tp 8": (
        TILE, QWEN, MoEDeployment(tp_size=8), ("tp_size 2, 3 or 6", "ep_size 8 instead of tensor parallelism")
    ),
    "the heads count": (
        TILE, QWEN.evolve(num_attention_heads=32), MoEDeployment(tp_size=8),
        ("tp_size 2", "ep_size 8 instead of tensor parallelism"),
    ),
    "groups cannot be cut": (
        whole_groups(), QWEN.evolve(quant="W4A16_AWQ"), MoEDeployment(tp_size=4),
        ("tp_size 2, 3 or 6", "ep_size 4 instead of tensor parallelism"),
    ),
    "uneven experts": (
        EVEN_EP, MoEProblem(num_experts=256), MoEDeployment(ep_size=3),
        ("ep_size 1, 2, 4 or 8", "2 redundant experts: num_slots 258 = 3 x 86, which needs EPLB"),
    ),
    "a list": (
        need(Reason.SHAPE_UNALIGNED, "hidden_size", OneOf(values=(2048, 2560, 3072, 4096))),
        MoEProblem(hidden_size=2880), MoEDeployment(), ("nearest hidden_size 2560 or 3072",),
    ),
    "a model's size": (
        need(Reason.SHAPE_UNALIGNED, "hidden_size", MultipleOf(value=512)),
        MoEProblem(hidden_size=2880), MoEDeployment(), ("nearest hidden_size 2560 or 3072",),
    ),
    "no size helps": (sm_in(100), QWEN, MoEDeployment(environment={"device": "cuda", "sm": 90}), ()),
}  # fmt: skip


@pytest.mark.parametrize(("gate", "problem", "deployment", "expected"), CASES.values(), ids=CASES)
def test_legal_neighbours(gate, problem, deployment, expected):
    facts = facts_of(problem, deployment)
    assert gate.met(facts) is False
    rejection = Rejection(
        reason=gate.reason, fact=gate.fact, found=facts[gate.fact], fixable_by=gate.fixable_by, requirement=gate
    )
    assert legal_neighbours(rejection, problem, deployment) == expected


def test_a_rejection_without_a_requirement_has_no_neighbours():
    banned = Rejection.of(Reason.BANNED, fact="ban", found="MEGA")
    assert legal_neighbours(banned, QWEN, MoEDeployment()) == ()
