"""The sections below an outcome's head: who else could, who could not and why, who lacks only an adapter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moe_core.contract.decision import RankedCandidate
from moe_core.explain.document import NO_BREAK, Item, Section, Text, joined, muted, name, words
from moe_core.explain.heads import adjustment
from moe_core.explain.hints import Hint
from moe_core.explain.merge import Refused, RejectedGroup, merge
from moe_core.explain.outcome import Outcome
from moe_core.explain.phrases import MANY_OF, basis, counted, duration, reason, tuned

SHOWN_HINTS = 8
"""Hints of a short explanation of a failure; all of them when asked for."""


def also_eligible(outcome: Outcome, scope: str) -> Iterator[Section]:
    """Eligible candidates that did not win, per kind."""
    for decision in outcome.decisions:
        others = decision.alternatives
        if others:
            eligible = "also eligible" if decision.winner else "eligible"
            title = f"{MANY_OF[decision.kind]} {eligible} ({len(others)}){scope}"
            yield Section(title, tuple(Item(_alternative(c, decision.winning)) for c in others))


def _alternative(candidate: RankedCandidate, winner: RankedCandidate | None) -> Text:
    remarks = [f"priority {candidate.priority}", *map(adjustment, candidate.adjustments)]
    if candidate.microseconds is not None:
        remarks.append(f"measured {duration(candidate.microseconds)}")
    if candidate.tuning is not None and candidate.tuning.microseconds is not None:
        remarks.append(f"expected {duration(candidate.tuning.microseconds)}")
    if candidate.partner is not None and winner is not None and candidate.partner != winner.partner:
        remarks.append(f"with {candidate.partner}")
    if not candidate.in_request:
        remarks.append("not what was asked for")
    remarks += [f"assumes {a.fact}: {a.needed}" for a in candidate.assumptions]
    tuning = candidate.tuning
    rests_on = () if tuning is None else words(f", {tuned(tuning)}: ", *basis(tuning))
    return words(name(candidate.identity), f"  {', '.join(remarks)}", *rests_on)


def rejected(outcome: Outcome, scope: str, *, every_reason: bool) -> Iterator[Section]:
    """Refused candidates per kind, merged by reason."""
    for decision in outcome.decisions:
        if decision.rejected:
            groups = merge(decision.rejected, every_reason=every_reason)
            title = f"{MANY_OF[decision.kind]} refused ({len(decision.rejected)}){scope}"
            yield Section(title, tuple(map(_in_full if every_reason else _in_short, groups)))


def _in_short(group: RejectedGroup) -> Item:
    """The first reason, and under it whom it refuses."""
    count = f" - {len(group.members)} candidates" if len(group.members) > 1 else ""
    if group.lacks_only_an_adapter:
        head = words("would be eligible if an adapter were installed")
    else:
        head = reason(group.reasons[0])
    return Item((*head, *words(muted(count))), (joined(map(_member, group.members)),))


def _in_full(group: RejectedGroup) -> Item:
    """The refused, and under them every reason."""
    return Item(joined(map(_member, group.members)), tuple(map(reason, group.reasons)))


def _member(refused: Refused) -> Text:
    # No break inside the remark: it belongs to the name before it.
    more = f" (+{counted(refused.more, 'more reason')})".replace(" ", NO_BREAK) if refused.more else ""
    return words(name(refused.identity), muted(more))


def hint_section(hints: Sequence[Hint], *, resolved: bool, everything: bool) -> Iterator[Section]:
    """Hints last. In short: what would change the winner by itself, or, where there is none, what is nearest."""
    if everything:
        shown = list(hints)
    elif resolved:
        shown = [h for h in hints if h.wins]
    else:
        shown = list(hints[:SHOWN_HINTS])
    items = list(map(_hint, shown))
    if left := len(hints) - len(shown):
        items.append(Item(words(muted(f"{counted(left, 'more hint' if shown else 'hint')} with --all"))))
    if items:
        yield Section("hints", tuple(items))


def _hint(hint: Hint) -> Item:
    advice = hint.advice
    details = [words(f"legal here: {'; '.join(advice.neighbours)}")] if advice.neighbours else []
    for label, identities in (("would win: ", hint.wins), ("makes eligible: ", hint.unlocks)):
        if identities:
            details.append(words(muted(label), *joined(words(name(i)) for i in identities)))
    if hint.helps and not (hint.wins or hint.unlocks):
        details.append(words(muted(f"{_share(hint)} against {_few(hint.helps)}")))
    return Item(words(f"{advice.fixable_by:<9}{advice.text}"), tuple(details))


def _share(hint: Hint) -> str:
    return f"one reason of {hint.fewest_reasons}" + (" or more" if len(hint.helps) > 1 else "")


def _few(identities: Sequence[str]) -> str:
    return identities[0] if len(identities) == 1 else f"{len(identities)} candidates"
