"""The plugin that most plugins are: a declaration whose answer is the evaluation of its requirements."""

from __future__ import annotations

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.eligibility import MoEEligibility
from moe_core.contract.problem import MoEProblem
from moe_core.registry.hookspecs import hookimpl
from moe_core.resolve.evaluate import can_implement


class Declared:
    """A plugin made of one candidate: ``Declared(candidate)`` supplies both required hooks."""

    def __init__(self, candidate: MoECandidate) -> None:
        self.candidate = candidate

    @hookimpl
    def moe_candidate(self) -> MoECandidate:
        """The declaration."""
        return self.candidate

    @hookimpl
    def can_implement(self, problem: MoEProblem, deployment: MoEDeployment) -> MoEEligibility:
        """The evaluation of the declared requirements."""
        return can_implement(self.candidate, problem, deployment)

    def __repr__(self) -> str:
        return f"Declared({self.candidate.identity})"
