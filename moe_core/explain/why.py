"""What would make one candidate eligible: each of its requirements, met or not, with legal values nearby."""

from __future__ import annotations

from difflib import get_close_matches

from moe_core.contract.base import Frozen
from moe_core.contract.candidate import MoECandidate
from moe_core.contract.catalog import Catalog
from moe_core.contract.decision import Decision
from moe_core.contract.eligibility import Found, Rejection
from moe_core.contract.facts import facts_of
from moe_core.contract.gates import gates_of
from moe_core.contract.reasons import MoERejectReason
from moe_core.contract.report import MoEResolutionReport
from moe_core.contract.requirement import Requirement
from moe_core.contract.vocabulary import FixableBy, Word
from moe_core.explain.phrases import counted
from moe_core.resolve.neighbours import legal_neighbours


class Verdict(Word):
    """What became of one requirement."""

    FAILED = "failed"
    UNKNOWN = "unknown"
    """A fact is not known, and the requirement abstains."""
    PASSED = "passed"
    EXEMPT = "exempt"
    """It does not apply here: its condition does not hold."""


class Finding(Frozen):
    """One requirement of a candidate, looked at."""

    verdict: Verdict
    reason: MoERejectReason
    fact: str
    found: Found
    needed: str
    hint: str
    fixable_by: FixableBy
    neighbours: tuple[str, ...] = ()
    """Legal values near the found one."""


class Why(Frozen):
    """A candidate in one report: how it fared, and every requirement."""

    identity: str
    title: str
    outcome: str
    """``won``, ``eligible, 2 of 5``, ``refused, 3 of 14 requirements failed``."""
    findings: tuple[Finding, ...]
    """In the order in which they are checked."""

    def of(self, verdict: Verdict) -> tuple[Finding, ...]:
        """The findings of one verdict."""
        return tuple(f for f in self.findings if f.verdict is verdict)


class UnknownCandidateError(ValueError):
    """A text that names no candidate, or several; the message has those that are close."""


def find_candidate(text: str, catalog: Catalog) -> MoECandidate:
    """The candidate of an identity, or of a part that only one identity has."""
    wanted = text.strip().casefold()
    if wanted in catalog:
        return catalog.get(wanted)
    identities = [c.identity for c in catalog.candidates]
    for matches in (
        [c.identity for c in catalog.families.get(wanted.upper(), ())],
        [i for i in identities if wanted and i.endswith(f".{wanted}")],
        [i for i in identities if wanted and wanted in i],
    ):
        if len(matches) == 1:
            return catalog.get(matches[0])
        if matches:
            raise UnknownCandidateError(f"{text!r} names {len(matches)} candidates: {', '.join(matches)}")
    close = get_close_matches(wanted, identities, n=3, cutoff=0.5)
    advice = f"did you mean {' or '.join(close)}?" if close else "`moe candidates` lists them"
    raise UnknownCandidateError(f"{text!r} names no candidate; {advice}")


def why(candidate: MoECandidate, report: MoEResolutionReport) -> Why:
    """How `candidate` fared in `report`, with every one of its requirements.

    A reason that is no declared requirement (a ban, a missing adapter, no partner, a plugin's own) is a failed finding.
    """
    decision = report.decision(candidate.kind)
    facts = facts_of(report.problem, report.deployment)
    findings = [
        _finding(gate, gate.holds(facts), gate.met(facts), facts[gate.fact], report) for gate in gates_of(candidate)
    ]
    others = [r for r in decision.rejections_of(candidate.identity) if r.requirement is None]
    findings = [*map(_undeclared, others), *findings]
    return Why(
        identity=candidate.identity,
        title=candidate.title,
        outcome=_outcome(candidate, decision, findings),
        findings=tuple(findings),
    )


def _finding(
    gate: Requirement, holds: bool | None, met: bool | None, found: Found, report: MoEResolutionReport
) -> Finding:
    if met is None:
        verdict = Verdict.UNKNOWN
    elif not met:
        verdict = Verdict.FAILED
    else:
        verdict = Verdict.PASSED if holds else Verdict.EXEMPT
    near: tuple[str, ...] = ()
    if verdict is Verdict.FAILED:
        rejection = Rejection(
            reason=gate.reason, fact=gate.fact, found=found, fixable_by=gate.fixable_by, requirement=gate
        )
        near = legal_neighbours(rejection, report.problem, report.deployment)
    return Finding(
        verdict=verdict, reason=gate.reason, fact=gate.fact, found=found, needed=gate.needed, hint=gate.hint,
        fixable_by=gate.fixable_by, neighbours=near,
    )  # fmt: skip


def _undeclared(rejection: Rejection) -> Finding:
    return Finding(
        verdict=Verdict.FAILED, reason=rejection.reason, fact=rejection.fact, found=rejection.found,
        needed=rejection.needed, hint=rejection.hint, fixable_by=rejection.fixable_by,
    )  # fmt: skip


def _outcome(candidate: MoECandidate, decision: Decision, findings: list[Finding]) -> str:
    if decision.winner == candidate.identity:
        return "won"
    order = [c.identity for c in decision.eligible]
    if candidate.identity in order:
        return f"eligible, place {order.index(candidate.identity) + 1} of {len(order)}"
    if not decision.rejections_of(candidate.identity):
        return "not asked: the request leaves it out"
    failed = sum(f.verdict is Verdict.FAILED for f in findings)
    return f"refused: {failed} of {counted(len(findings), 'requirement')} failed"
