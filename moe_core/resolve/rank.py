"""The order of eligible candidates, and the rule that made it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.evidence import Evidence, Measurement
from moe_core.contract.problem import MoEProblem
from moe_core.contract.tuning import Tuning
from moe_core.contract.vocabulary import SelectedBy


@dataclass(frozen=True, slots=True)
class Ranking:
    """Candidates, best first, with what times did to the order."""

    order: tuple[MoECandidate, ...]
    measured: dict[str, float]
    """Measured microseconds by identity."""
    rule: SelectedBy = SelectedBy.PRIORITY
    """What made the order: priority alone, or times that changed it."""
    swapped: frozenset[str] = frozenset()
    """Identities that `rule` put in order among themselves; empty for priority."""
    notes: tuple[str, ...] = ()

    def rule_of(self, candidate: MoECandidate) -> SelectedBy:
        """What put `candidate` where it is."""
        return self.rule if candidate.identity in self.swapped else SelectedBy.PRIORITY


def by_priority(candidates: Iterable[MoECandidate]) -> list[MoECandidate]:
    """Highest priority first; equal priorities in order of identity."""
    return sorted(candidates, key=lambda c: (-c.priority, c.identity))


def rank(
    candidates: Iterable[MoECandidate],
    problem: MoEProblem,
    deployment: MoEDeployment,
    evidence: Evidence,
    tokens: int | None,
    tuning: Mapping[str, Tuning],
) -> Ranking:
    """Priority's order, in which candidates with times swap places among themselves.

    Measured times, or where nothing is measured, those that plugins expect: the two are never compared.
    """
    order = by_priority(candidates)
    expected = {c.identity: t for c in order if (t := _expected(tuning.get(c.identity))) is not None}
    measured, notes = _measured(order, problem, deployment, evidence, tokens)
    if measured and len(expected) > 1:
        notes += (f"{len(expected)} expected times were not used: there are measurements",)
    times = measured or expected
    by_time = _swapped(order, times)
    if by_time == order:
        return Ranking(tuple(order), measured, notes=notes)
    rule = SelectedBy.EVIDENCE if measured else SelectedBy.PREDICTED
    return Ranking(tuple(by_time), measured, rule, frozenset(times), notes)


def _expected(tuning: Tuning | None) -> float | None:
    return None if tuning is None else tuning.microseconds


def _swapped(order: list[MoECandidate], times: Mapping[str, float]) -> list[MoECandidate]:
    places = [i for i, c in enumerate(order) if c.identity in times]
    fastest = sorted((order[i] for i in places), key=lambda c: (times[c.identity], -c.priority, c.identity))
    by_time = list(order)
    for place, candidate in zip(places, fastest, strict=True):
        by_time[place] = candidate
    return by_time


def _measured(
    order: list[MoECandidate], problem: MoEProblem, deployment: MoEDeployment, evidence: Evidence, tokens: int | None
) -> tuple[dict[str, float], tuple[str, ...]]:
    if not evidence.measurements:
        return {}, ()
    identities = {c.identity for c in order}
    about_us = [m for m in evidence.measurements if m.identity in identities]
    fitting = _fitting(about_us, problem, deployment)
    notes: tuple[str, ...] = ()
    if len(fitting) < len(about_us):
        notes = (
            f"{len(about_us) - len(fitting)} of {len(about_us)} measurements are of another problem, machine or "
            "partition and were not used",
        )
    return _times(fitting, tokens), notes


def _fitting(measurements: list[Measurement], problem: MoEProblem, deployment: MoEDeployment) -> list[Measurement]:
    if not measurements or not problem.is_fully_specified:
        return []
    here = (problem.fingerprint, deployment.environment.fingerprint, deployment.ep_size, deployment.tp_size)
    return [m for m in measurements if (m.problem, m.environment, m.ep_size, m.tp_size) == here]


def _times(measurements: list[Measurement], tokens: int | None) -> dict[str, float]:
    """Per candidate the time at the smallest measured token count that covers `tokens`, else at the largest.

    Times are comparable only at one token count, so the count is chosen once for all.
    """
    if not measurements:
        return {}
    counts = sorted({m.tokens for m in measurements})
    count = counts[-1] if tokens is None else next((c for c in counts if c >= tokens), counts[-1])
    return {
        m.identity: m.microseconds for m in sorted(measurements, key=lambda m: -m.microseconds) if m.tokens == count
    }
