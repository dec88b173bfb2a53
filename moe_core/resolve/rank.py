"""The order of eligible candidates, and the rule that made it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.evidence import Evidence, Measurement
from moe_core.contract.problem import MoEProblem


@dataclass(frozen=True, slots=True)
class Ranking:
    """Candidates, best first, with what measurements did to the order."""

    order: tuple[MoECandidate, ...]
    microseconds: dict[str, float]
    moved: bool
    """Whether measurements changed the order that priority gives."""
    notes: tuple[str, ...]


def by_priority(candidates: Iterable[MoECandidate]) -> list[MoECandidate]:
    """Highest priority first; equal priorities in order of identity."""
    return sorted(candidates, key=lambda c: (-c.priority, c.identity))


def rank(
    candidates: Iterable[MoECandidate],
    problem: MoEProblem,
    deployment: MoEDeployment,
    evidence: Evidence,
    tokens: int | None,
) -> Ranking:
    """Priority's order, in which measured candidates swap places among themselves by measured time."""
    order = by_priority(candidates)
    if not evidence.measurements:
        return Ranking(tuple(order), {}, moved=False, notes=())
    identities = {c.identity for c in order}
    about_us = [m for m in evidence.measurements if m.identity in identities]
    fitting = _fitting(about_us, problem, deployment)
    notes: tuple[str, ...] = ()
    if len(fitting) < len(about_us):
        notes = (
            f"{len(about_us) - len(fitting)} of {len(about_us)} measurements are of another problem, machine or "
            "partition and were not used",
        )
    times = _times(fitting, tokens)
    places = [i for i, c in enumerate(order) if c.identity in times]
    fastest = sorted((order[i] for i in places), key=lambda c: (times[c.identity], -c.priority, c.identity))
    by_time = list(order)
    for place, candidate in zip(places, fastest, strict=True):
        by_time[place] = candidate
    return Ranking(tuple(by_time), times, moved=by_time != order, notes=notes)


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
