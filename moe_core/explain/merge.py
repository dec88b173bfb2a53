"""Refused candidates, merged by equal reason so that a reason is read once; nobody is lost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from moe_core.contract.decision import RejectedCandidate
from moe_core.contract.eligibility import Rejection
from moe_core.contract.predicate import show
from moe_core.contract.vocabulary import FixableBy
from moe_core.resolve.ask import NO_ADAPTER

EASIEST_FIRST = tuple(FixableBy)
"""Who can act, in the vocabulary's order: install, flag, topology, workload, hardware, model."""

ReasonKey = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Refused:
    """A refused candidate, and how many reasons it has beyond those of its group."""

    identity: str
    more: int = 0


@dataclass(frozen=True, slots=True)
class RejectedGroup:
    """Candidates that were refused for the same reasons."""

    reasons: tuple[Rejection, ...]
    members: tuple[Refused, ...]

    @property
    def lacks_only_an_adapter(self) -> bool:
        """Whether its candidates would be eligible if an installed plugin could run them."""
        # Every other reason comes before the missing adapter.
        return self.reasons == (NO_ADAPTER,)


def merge(rejected: Iterable[RejectedCandidate], *, every_reason: bool = False) -> tuple[RejectedGroup, ...]:
    """Groups of candidates with the same first reason (or all the same reasons).

    First those that most is in reach for: an install comes before another machine, and that before another model.
    """
    groups: dict[tuple[ReasonKey, ...], tuple[tuple[Rejection, ...], list[Refused]]] = {}
    for candidate in rejected:
        reasons = candidate.rejections if every_reason else candidate.rejections[:1]
        key = tuple(reason_key(r) for r in reasons)
        _, members = groups.setdefault(key, (reasons, []))
        members.append(Refused(candidate.identity, len(candidate.rejections) - len(reasons)))
    found = [RejectedGroup(reasons, tuple(members)) for reasons, members in groups.values()]
    return tuple(sorted(found, key=_order))


def _order(group: RejectedGroup) -> tuple[int, int, list[ReasonKey]]:
    effort = EASIEST_FIRST.index(group.reasons[0].fixable_by)
    return (effort, -len(group.members), [reason_key(r) for r in group.reasons])


def reason_key(rejection: Rejection) -> ReasonKey:
    """What makes two rejections read the same."""
    return (rejection.reason.name, rejection.fact, show(rejection.found), rejection.needed)
