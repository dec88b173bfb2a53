"""What every plugin owes, one law each. An ``assert_*`` raises ``AssertionError`` and names the question."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from moe_core.contract.eligibility import MoEEligibility, Rejection
from moe_core.contract.facts import Facts, is_fact_name
from moe_core.contract.gates import gates_of
from moe_core.contract.predicate import show
from moe_core.contract.reasons import MoERejectReason
from moe_core.contract.report import MoEResolutionReport
from moe_core.contract.request import MoERequest
from moe_core.resolve import can_implement, resolve_moe_impl
from moe_core.testing.boundary import BoundaryCase
from moe_core.testing.isolated import Answers, Observation
from moe_core.testing.question import NEEDED_TO_TUNE, Question, knows_no_more
from moe_core.testing.subject import Subject

RESERVED = (MoERejectReason.PLUGIN_ERROR, MoERejectReason.BANNED, MoERejectReason.RANK_DISAGREEMENT)
"""Reasons that only moe_core gives."""


def assert_light(observation: Observation, allowed: Sequence[str] = ()) -> None:
    """Importing the plugin loads no package but its own and those `allowed`, no library, and starts nothing."""
    heavy = [name for name in observation.imported if name not in allowed]
    assert not heavy, (
        f"the declaration or its tuning imports {', '.join(heavy)}; move what needs it into the module of the factory"
    )
    assert not observation.started, (
        f"the declaration or its tuning does {', '.join(observation.started)}; do it when the candidate is bound"
    )


def assert_pure(subject: Subject, questions: Sequence[Question], observations: Iterable[Observation]) -> None:
    """Nothing but the arguments was touched, and every answer is the same again and in every process."""
    _assert_pure(subject, "can_implement", questions, (observation.plugins for observation in observations))


def assert_tuning_pure(subject: Subject, questions: Sequence[Question], observations: Iterable[Observation]) -> None:
    """:func:`assert_pure` of ``moe_tuning``, for what is accepted."""
    _assert_pure(subject, "moe_tuning", questions, (observation.tunings for observation in observations))


def _assert_pure(
    subject: Subject, hook: str, questions: Sequence[Question], processes: Iterable[Mapping[str, Answers]]
) -> None:
    first, second = (answers.get(str(subject)) for answers in processes)
    assert first is not None, f"{subject} is not declared in a fresh process"
    assert second is not None, f"{subject} is declared in one of two processes only"
    for answers in (first, second):
        assert answers.impure is None, f"{subject}: {hook} {answers.impure}"
        assert answers.changed is None, (
            f"{subject}: the second answer to a question differs from the first, {answers.answers[answers.changed]}; "
            f"the question: {questions[answers.changed]}"
        )
    assert first.candidate == second.candidate, (
        f"{subject}: two processes see different declarations; is it made from a set?"
    )
    for question, one, other in zip(questions, first.answers, second.answers, strict=True):
        assert one == other, f"{subject}: two processes get different answers, {one} and {other}; question: {question}"


def assert_abstains(subject: Subject, less: Question, more: Question) -> None:
    """Knowing more never turns a refusal into an acceptance of the same question."""
    assert knows_no_more(less, more), "not the same question: this would prove nothing"
    if not subject.ask(more):
        return
    answer = subject.ask(less)
    assert answer, (
        f"{subject} refuses what is unknown: {_reasons(answer)}, although it accepts the same question when more is "
        f"known; a rule that needs an unknown fact abstains. Unknown: {less}. Known: {more}"
    )


def assert_tuned(subject: Subject, question: Question, tokens: int) -> None:
    """It answers with a tuning, or with nothing, and with nothing where a size or the device is unknown."""
    try:
        tuning = subject.tune(question, tokens)
    except Exception as error:
        raise AssertionError(
            f"{subject}: moe_tuning raised {type(error).__name__}: {error}; return None where there is nothing to "
            f"expect; {tokens} tokens, question: {question}"
        ) from error
    unknown = [field for field in NEEDED_TO_TUNE if _field(question, field) is None]
    assert tuning is None or not unknown, (
        f"{subject}: moe_tuning expects {tuning!r}, although {', '.join(unknown)} is unknown; return None then"
    )


def _field(question: Question, field: str) -> object:
    part, _, name = field.partition(".")
    return getattr(getattr(question, part), name)


def assert_reasons(subject: Subject, question: Question) -> None:
    """A refusal gives every reason that the declaration has, and each reason says what was found and is needed."""
    answer, facts = subject.ask(question), question.facts
    for rejection in answer.rejections:
        flaw = _flaw(rejection, facts)
        assert flaw is None, f"{subject}: the rejection {rejection.reason.name} {flaw}; question: {question}"
    if answer:
        return
    given = {(r.reason, r.fact) for r in answer.rejections}
    missing = [g for g in gates_of(subject.candidate) if g.met(facts) is False and (g.reason, g.fact) not in given]
    assert not missing, (
        f"{subject}: the refusal ({_reasons(answer)}) leaves out "
        f"{', '.join(f'{g.reason.name} {g.fact}' for g in missing)}: give every reason; question: {question}"
    )


def _flaw(rejection: Rejection, facts: Facts) -> str | None:
    fact, found = rejection.fact, rejection.found
    if rejection.reason in RESERVED:
        return "is moe_core's own"
    if not fact or not rejection.needed:
        return f"lacks {'fact' if not fact else 'needed'}"
    if found is None:
        return f"of {fact} lacks found: what is unknown refuses nothing"
    if is_fact_name(fact) and found != facts[fact]:
        return f"says that {fact} is {show(found)}, and it is {show(facts[fact])}"
    return None


def assert_honours(subject: Subject, case: BoundaryCase) -> None:
    """At a limit of the declaration, the answer is at least as strict as the declaration."""
    declared, own = can_implement(subject.candidate, *case.question), subject.ask(case.question)
    assert declared or not own, f"{subject} accepts what its declaration refuses: {case}; question: {case.question}"


def assert_resolved(subject: Subject, question: Question) -> None:
    """The report has exactly one row for the candidate, which agrees with its answer, and survives JSON."""
    request = MoERequest(require_adapter=False)
    report = resolve_moe_impl(*question, candidates=subject.registry.catalog, request=request)
    decision = report.decision(subject.candidate.kind)
    refused = {row.identity: row.rejections for row in decision.rejected}
    rows = [row.identity for row in decision.eligible] + [*refused]
    assert rows == [str(subject)], f"the report has the rows {rows} for {subject}"
    answer = subject.ask(question)
    if not answer:
        assert refused[str(subject)] == answer.rejections, f"the report gives other reasons than {subject}"
    assert MoEResolutionReport.from_json(report.to_json()) == report, f"the report on {subject} does not survive JSON"


def _reasons(answer: MoEEligibility) -> str:
    return ", ".join(f"{r.reason.name} {r.fact}" for r in answer.rejections)
