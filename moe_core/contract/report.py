"""The outcome of a resolution, complete on success as on failure."""

from __future__ import annotations

from typing import Literal

from moe_core.contract.base import SCHEMA_VERSION, Frozen
from moe_core.contract.decision import Decision, Degradation, PluginError, RankedCandidate
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.eligibility import Assumption, Rejection
from moe_core.contract.problem import MoEProblem
from moe_core.contract.request import MoERequest
from moe_core.contract.vocabulary import CandidateKind, SchedulerKind, SelectedBy


class MemoryRow(Frozen):
    """Bytes on the fullest rank, computed from sizes (a floor). ``None`` where a size is unknown."""

    weights: int | None
    workspace: int | None
    reserved: int
    device: int | None


class UnresolvedError(RuntimeError):
    """A winner was asked of a report that has none; the message carries the whole trail."""

    def __init__(self, report: MoEResolutionReport) -> None:
        self.report = report
        super().__init__(report.trail())


class MoEResolutionReport(Frozen):
    """Inputs, decisions, degradations and assumptions of one resolution. Gates everything that runs."""

    schema_version: Literal[1] = SCHEMA_VERSION
    problem: MoEProblem
    deployment: MoEDeployment
    request: MoERequest
    catalog: str
    """Fingerprint of the candidates that were asked."""
    decisions: tuple[Decision, ...]
    degradations: tuple[Degradation, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    """What the winners rest on because facts are unknown."""
    invalid: tuple[Rejection, ...] = ()
    """Contradictions between problem and deployment: nothing can run while there are any."""
    plugin_errors: tuple[PluginError, ...] = ()
    notes: tuple[str, ...] = ()
    """Remarks on the request: a ban that matches nothing, say."""
    memory: MemoryRow

    @property
    def ok(self) -> bool:
        """Whether every decision has a winner."""
        return not self.invalid and all(d.settled for d in self.decisions)

    @property
    def token_buckets(self) -> tuple[int | None, ...]:
        """The token buckets that were decided, in order."""
        return tuple(dict.fromkeys(d.token_bucket for d in self.decisions))

    def decision(self, kind: CandidateKind, tokens: int | None = None) -> Decision:
        """The decision of a kind for `tokens` per rank (default: the largest bucket)."""
        of_kind = [d for d in self.decisions if d.kind is kind]
        if not of_kind:
            raise KeyError(f"the report has no decision of kind {kind}")
        if tokens is not None:
            for decision in of_kind:
                if decision.token_bucket is None or tokens <= decision.token_bucket:
                    return decision
        return of_kind[-1]

    @property
    def backend(self) -> Decision:
        """The backend decision (of the largest token bucket)."""
        return self.decision(CandidateKind.BACKEND)

    @property
    def communication(self) -> Decision:
        """The communication decision (of the largest token bucket)."""
        return self.decision(CandidateKind.COMMUNICATION)

    def winner(self, kind: CandidateKind = CandidateKind.BACKEND, tokens: int | None = None) -> RankedCandidate:
        """The winning candidate; raises :class:`UnresolvedError` with the whole trail when there is none."""
        if not self.ok:
            raise UnresolvedError(self)
        winning = self.decision(kind, tokens).winning
        if winning is None:
            raise UnresolvedError(self)
        return winning

    @property
    def scheduler_kind(self) -> SchedulerKind:
        """Who moves tokens; raises :class:`UnresolvedError` when nothing was selected."""
        return self.winner().scheduler_kind

    @property
    def selected_by(self) -> SelectedBy:
        """The rule that decided the backend."""
        return self.backend.selected_by

    @property
    def degraded(self) -> bool:
        """Whether anything stepped down."""
        return bool(self.degradations)

    @property
    def degraded_from(self) -> str | None:
        """What the backend stepped down from."""
        return next((d.source for d in self.degradations if d.kind is CandidateKind.BACKEND), None)

    def trail(self) -> str:
        """Every reason of every candidate, as plain lines."""
        from moe_core.contract.predicate import show

        lines = [
            f"no MoE implementation was selected (backend={self.request.backend}, "
            f"communication={self.request.communication})"
        ]
        lines += [f"  invalid: {r.fact}: found {show(r.found)}, needed {r.needed}; {r.hint}" for r in self.invalid]
        for decision in self.decisions:
            for candidate in decision.rejected:
                reasons = "; ".join(
                    f"{r.reason.name} {r.fact}: found {show(r.found)}, needed {r.needed}" for r in candidate.rejections
                )
                lines.append(f"  {candidate.identity}: {reasons}")
            if not decision.rejected and not decision.eligible:
                lines.append(f"  no {decision.kind} candidate was asked: no plugin offers one")
        lines += [f"  plugin {e.plugin}: {e.error}" for e in self.plugin_errors]
        return "\n".join(lines)
