"""What would change the outcome: hints of refusals, merged, with the legal sizes near the given ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from moe_core.contract.decision import Decision, RejectedCandidate
from moe_core.contract.eligibility import Rejection
from moe_core.contract.report import MoEResolutionReport
from moe_core.contract.request import AUTO
from moe_core.contract.vocabulary import FixableBy, SelectedBy
from moe_core.explain.merge import EASIEST_FIRST
from moe_core.explain.outcome import failures
from moe_core.resolve.ask import NO_ADAPTER
from moe_core.resolve.neighbours import legal_neighbours


@dataclass(frozen=True, slots=True)
class Advice:
    """Something to try, and who can do it."""

    fixable_by: FixableBy
    text: str
    neighbours: tuple[str, ...] = ()
    """Legal sizes near the given ones."""


@dataclass(frozen=True, slots=True)
class Hint:
    """An advice, with what it would do."""

    advice: Advice
    wins: tuple[str, ...]
    """Candidates against which nothing else speaks, and which are preferred to the winner, if there is one."""
    unlocks: tuple[str, ...]
    """Other candidates against which nothing else speaks."""
    helps: tuple[str, ...]
    """Candidates that have other reasons against them too."""
    fewest_reasons: int
    """Reasons against the candidate that is nearest to being eligible."""


@dataclass(slots=True)
class _Concerned:
    """A refused candidate that an advice is for."""

    reasons: int
    preferred: bool


def hints_of(reports: Iterable[MoEResolutionReport]) -> tuple[Hint, ...]:
    """Every hint, equal ones once: first what would change the winner by itself, then the easiest.

    Where a decision failed, only hints for that decision.
    """
    found: dict[Advice, dict[str, _Concerned]] = {}
    for report in dict.fromkeys(reports):
        # Many candidates share a limit, and looking for legal sizes asks it again and again.
        advice_on = cache(lambda rejection, report=report: advice_of(rejection, report))
        for rejection in report.invalid:
            found.setdefault(Advice(rejection.fixable_by, rejection.hint), {})
        # Nothing runs while there is a contradiction, whatever else is tried.
        decisions = () if report.invalid else failures(report.decisions) or report.decisions
        for decision in decisions:
            for candidate in decision.rejected:
                advices = dict.fromkeys(advice_on(rejection) for rejection in candidate.rejections)
                reasons = 1 if len(advices) == 1 else len(candidate.rejections)
                concerned = _Concerned(reasons, _preferred(candidate, decision))
                for advice in filter(None, advices):
                    found.setdefault(advice, {})[candidate.identity] = concerned
    return tuple(sorted((_hint(advice, concerned) for advice, concerned in found.items()), key=_order))


def _preferred(candidate: RejectedCandidate, decision: Decision) -> bool:
    """Whether the candidate would win if it were eligible: what was asked for comes before priority."""
    winner = decision.winning
    if winner is None:
        return True
    # Where times moved the winner, the first place is that of the highest priority among those that it passed.
    best = winner.priority
    if decision.selected_by in (SelectedBy.EVIDENCE, SelectedBy.PREDICTED):
        best = max(c.priority for c in decision.eligible)
    rank = (_asked_for(candidate, decision.requested), candidate.priority)
    return rank > (winner.in_request, best)


def _asked_for(candidate: RejectedCandidate, requested: str) -> bool:
    if requested in (AUTO, candidate.family, candidate.identity):
        return True
    # A query: segments of an identity, in lower case where a family is in capitals.
    return requested.islower() and set(requested.split(".")) - {"*"} <= set(candidate.identity.split("."))


def _hint(advice: Advice, concerned: dict[str, _Concerned]) -> Hint:
    return Hint(
        advice=advice,
        wins=tuple(i for i, c in concerned.items() if c.reasons == 1 and c.preferred),
        unlocks=tuple(i for i, c in concerned.items() if c.reasons == 1 and not c.preferred),
        helps=tuple(i for i, c in concerned.items() if c.reasons > 1),
        fewest_reasons=min((c.reasons for c in concerned.values()), default=0),
    )


def advice_of(rejection: Rejection, report: MoEResolutionReport) -> Advice | None:
    """What to try against one rejection; ``None`` when nothing is known to help."""
    if rejection == NO_ADAPTER:
        return None
    near = legal_neighbours(rejection, report.problem, report.deployment)
    if not rejection.hint and not near:
        return None
    return Advice(rejection.fixable_by, rejection.hint or f"{rejection.fact}: {rejection.needed}", near)


def _order(hint: Hint) -> tuple[int, int, int, int, str, tuple[str, ...]]:
    advice = hint.advice
    effort = EASIEST_FIRST.index(advice.fixable_by)
    return (-len(hint.wins), hint.fewest_reasons, effort, -len(hint.helps), advice.text, advice.neighbours)
