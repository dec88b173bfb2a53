"""One candidate's answer: the evaluation of everything that it must pass."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.eligibility import Adjustment, Assumption, MoEEligibility, Rejection
from moe_core.contract.facts import Facts, FactValue, facts_of
from moe_core.contract.gates import gates_of
from moe_core.contract.problem import MoEProblem
from moe_core.contract.requirement import Requirement

NOT_ASKED: Any = object()


def can_implement(candidate: MoECandidate, problem: MoEProblem, deployment: MoEDeployment) -> MoEEligibility:
    """Whether `candidate` can compute `problem` on `deployment`: every reason, every assumption. Pure."""
    return evaluate(candidate, facts_of(problem, deployment))


def evaluate(candidate: MoECandidate, facts: Facts) -> MoEEligibility:
    """:func:`can_implement` on facts that are computed already."""
    rejections: dict[tuple[str, str, str], Rejection] = {}
    assumptions: list[Assumption] = []
    known = facts.answers
    for gate in gates_of(candidate):
        met = known.get(gate, NOT_ASKED)
        if met is NOT_ASKED:
            met = known[gate] = gate.met(facts)
        if met:
            continue
        if met is None:
            assumptions.append(_assumption(gate))
        else:
            # Upstream's own gate and the central one may say the same: one reason.
            rejections.setdefault((gate.reason, gate.fact, gate.needed), _rejection(gate, facts[gate.fact]))
    if rejections:
        return MoEEligibility(eligible=False, rejections=tuple(rejections.values()))
    return MoEEligibility(eligible=True, assumptions=tuple(assumptions), adjustments=adjustments_of(candidate, facts))


def adjustments_of(candidate: MoECandidate, facts: Facts) -> tuple[Adjustment, ...]:
    """The declared adaptations that these sizes call for."""
    found = []
    for rule in candidate.adjustments:
        size = facts[rule.fact]
        if isinstance(size, int) and size % rule.multiple:
            becomes = size if rule.kind == "sub_block" else -(-size // rule.multiple) * rule.multiple
            found.append(Adjustment(kind=rule.kind, fact=rule.fact, found=size, becomes=becomes))
    return tuple(found)


@lru_cache(maxsize=8192)
def _rejection(gate: Requirement, found: FactValue) -> Rejection:
    return Rejection(
        reason=gate.reason, fact=gate.fact, found=found, needed=gate.needed, hint=gate.hint,
        fixable_by=gate.fixable_by, requirement=gate,
    )  # fmt: skip


@lru_cache(maxsize=2048)
def _assumption(gate: Requirement) -> Assumption:
    return Assumption(fact=gate.fact, needed=gate.needed, reason=gate.reason)
