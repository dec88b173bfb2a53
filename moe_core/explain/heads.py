"""The first rows of an outcome: the winners and why, what stepped down, what the answer rests on."""

from __future__ import annotations

from collections.abc import Iterator

from moe_core.contract.decision import Decision, Degradation, RankedCandidate
from moe_core.contract.eligibility import Adjustment
from moe_core.contract.report import MoEResolutionReport
from moe_core.contract.request import AUTO
from moe_core.contract.vocabulary import CandidateKind, SelectedBy
from moe_core.explain.document import Row, Span, Text, Tone, muted, words
from moe_core.explain.outcome import Outcome, failures
from moe_core.explain.phrases import ONE_OF, basis, counted, duration, reason, tuned

LABELS = {CandidateKind.BACKEND: "winner", CandidateKind.COMMUNICATION: "exchange", CandidateKind.ROUTING: "routing"}

NONE_NEEDED = {
    SelectedBy.FUSED: "inside the backend's kernel: no strategy is needed",
    SelectedBy.MODEL: "by the model itself: no kernel is needed",
}


def head(outcome: Outcome) -> Iterator[Row]:
    """The answer in rows; the first is the winner and why, or that there is none and why."""
    report = outcome.report
    if report.invalid:
        yield Row("failed", words(Span("problem and deployment contradict each other", Tone.BAD)))
        yield from (Row("invalid", (*reason(r), *_try(r.hint))) for r in report.invalid)
    for decision in outcome.decisions:
        if decision in failures(outcome.decisions):
            yield Row("failed", words(Span(_failure(decision, report), Tone.BAD)))
        elif decision.settled:
            yield Row("then" if report.invalid else LABELS[decision.kind], _won(decision))
            yield from _tuned(decision.winning)
        yield from (Row("note", words(muted(note))) for note in decision.notes)
    if outcome.scope:
        yield Row("for", words(outcome.scope))


def _won(decision: Decision) -> Text:
    winner = decision.winning
    if winner is None:
        return words(NONE_NEEDED[decision.selected_by])
    return words(Span(winner.identity, Tone.GOOD), _adjusted(winner), f": {because(decision, winner)}")


def _tuned(winner: RankedCandidate | None) -> Iterator[Row]:
    if winner is None or winner.tuning is None:
        return
    tuning = winner.tuning
    expected = "" if tuning.microseconds is None else f"; expected {duration(tuning.microseconds)}"
    yield Row(tuned(tuning), words(*basis(tuning), expected, *_try("moe tune" if tuning.is_miss else "")))


def _adjusted(candidate: RankedCandidate) -> str:
    return "".join(f", {adjustment(a)}" for a in candidate.adjustments)


def adjustment(made: Adjustment) -> str:
    """``padded 176 -> 192``, ``sub-block 64``: what a kernel does with a size that its tiles do not divide."""
    if made.kind == "pad":
        return f"padded {made.found} -> {made.becomes} ({made.fact})"
    return f"sub-block {made.found} ({made.fact})"


def because(decision: Decision, winner: RankedCandidate) -> str:
    """Which rule decided, in terms of who was beaten."""
    match decision.selected_by:
        case SelectedBy.EVIDENCE:
            measured = sum(c.microseconds is not None for c in decision.eligible)
            return f"fastest of {measured} measured, {duration(winner.microseconds or 0.0)}"
        case SelectedBy.PREDICTED:
            rivals = sum(c.tuning is not None and c.tuning.microseconds is not None for c in decision.eligible)
            return f"expected to be the fastest of {rivals}"
        case SelectedBy.REQUEST:
            matches = sum(c.in_request for c in decision.eligible)
            return f"{_asked(decision)}; {_ranked(winner, matches, 'match', 'matches')}"
        case SelectedBy.FALLBACK:
            return f"fallback from {_asked(decision)}; {_ranked(winner, len(decision.eligible))}"
        case _:
            return _ranked(winner, len(decision.eligible))


def _asked(decision: Decision) -> str:
    return f"{decision.requested} (asked by {decision.requested_by})"


def _ranked(winner: RankedCandidate, rivals: int, one: str = "one eligible", many: str = "eligible") -> str:
    return f"the only {one}" if rivals == 1 else f"priority {winner.priority}, best of {rivals} {many}"


def _failure(decision: Decision, report: MoEResolutionReport) -> str:
    kind = ONE_OF[decision.kind]
    if not decision.rejected and not decision.eligible:
        return f"no installed plugin offers a {kind}"
    if decision.requested == AUTO or not decision.eligible:
        return f"no {kind} is eligible: {counted(len(decision.rejected), 'candidate')} refused"
    others = counted(len(decision.eligible), "other candidate")
    return f"{_asked(decision)} cannot run, and {_no_way_down(decision, report)}; {others} could"


def _no_way_down(decision: Decision, report: MoEResolutionReport) -> str:
    if not report.request.allow_degradation:
        return "stepping down is not allowed"
    # A family is written in capitals; it steps down unless it is VANILLA. Everything else that names is a pin.
    if report.request.upstream and decision.requested.isupper():
        return "TensorRT-LLM steps down to CUTLASS only"
    return "a pin never steps down"


def degraded(step: Degradation) -> Row:
    """A step down: from what, to what, why, and what would change it."""
    arrow = words(Span(f"{step.source} -> {step.target}", Tone.WARN), f": {step.reason}")
    return Row("degraded", (*arrow, *_try(step.hint)))


def assumed(outcome: Outcome) -> Iterator[Row]:
    """What the winners rest on because facts are unknown."""
    winners = [d.winning for d in outcome.decisions if d.winning is not None]
    facts = dict.fromkeys(f"{a.fact}: {a.needed}" for winner in winners for a in winner.assumptions)
    if facts:
        yield Row("assumes", words("; ".join(facts), muted(" (unknown here)")))


def _try(hint: str) -> Text:
    return words(f"; try: {hint}") if hint else ()
