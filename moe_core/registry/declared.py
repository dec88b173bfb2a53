"""The plugin that most plugins are: a declaration whose answer is the evaluation of its requirements."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from moe_core.contract.candidate import FACTORY, MoECandidate
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.eligibility import MoEEligibility
from moe_core.contract.problem import MoEProblem
from moe_core.registry.hookspecs import hookimpl
from moe_core.resolve.evaluate import can_implement


class Declared:
    """A plugin made of one candidate: ``Declared(candidate)`` supplies both required hooks.

    `tuning` is ``package.module:function`` of what answers ``moe_tuning``; it is imported when it is first asked.
    """

    def __init__(self, candidate: MoECandidate, tuning: str | None = None) -> None:
        if tuning is not None and not FACTORY.fullmatch(tuning):
            raise ValueError(f"tuning of {candidate.identity}: found {tuning!r}, needed 'package.module:function'")
        self.candidate = candidate
        self.tuning = tuning

    @hookimpl
    def moe_candidate(self) -> MoECandidate:
        """The declaration."""
        return self.candidate

    @hookimpl
    def can_implement(self, problem: MoEProblem, deployment: MoEDeployment) -> MoEEligibility:
        """The evaluation of the declared requirements."""
        return can_implement(self.candidate, problem, deployment)

    @hookimpl
    def moe_tuning(self, problem: MoEProblem, deployment: MoEDeployment, tokens: int) -> Any:
        """What the function named `tuning` answers; ``None`` when none is named."""
        return None if self.tuning is None else _loaded(self.tuning)(problem, deployment, tokens)

    def __repr__(self) -> str:
        return f"Declared({self.candidate.identity})"


@cache
def _loaded(tuning: str) -> Callable[..., Any]:
    module, _, name = tuning.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function
