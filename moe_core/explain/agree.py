"""Whether the reports of all ranks agree, and where they do not: which field, which ranks, which values."""

from __future__ import annotations

from collections.abc import Sequence

from moe_core.contract.base import Frozen
from moe_core.contract.model_report import MoEModelReport
from moe_core.contract.reasons import MoERejectReason
from moe_core.contract.report import MoEResolutionReport
from moe_core.explain.diff import MISSING
from moe_core.explain.document import Document, Item, Section, Span, Tone, words
from moe_core.explain.flat import Flat, flatten
from moe_core.explain.phrases import ranges

FIRST = 8
"""Disagreements shown: what differs first is usually the cause of the rest."""


class RankValue(Frozen):
    """A value, and the ranks that hold it."""

    value: str
    ranks: tuple[int, ...]


class Disagreement(Frozen):
    """A field that ranks hold different values of."""

    reason: MoERejectReason = MoERejectReason.RANK_DISAGREEMENT
    path: str
    values: tuple[RankValue, ...]
    """The value that most ranks hold first."""

    def __str__(self) -> str:
        held = ", ".join(f"{v.value} on {_ranks(v.ranks)}" for v in self.values)
        return f"{self.reason.name} {self.path}: {held}"


def agreement(reports: Sequence[MoEModelReport | MoEResolutionReport]) -> tuple[Disagreement, ...]:
    """Every field in which the reports of ranks 0, 1, … differ; empty when they agree."""
    if len(set(reports)) <= 1:
        return ()
    return disagreements([flatten(report) for report in reports])


def disagreements(flats: Sequence[Flat]) -> tuple[Disagreement, ...]:
    """The same of reports that are flat already."""
    found = []
    for path in dict.fromkeys(path for flat in flats for path in flat):
        held: dict[str, list[int]] = {}
        for rank, flat in enumerate(flats):
            held.setdefault(flat.get(path, MISSING), []).append(rank)
        if len(held) > 1:
            values = sorted(held.items(), key=lambda item: (-len(item[1]), item[1]))
            found.append(Disagreement(path=path, values=tuple(RankValue(value=v, ranks=tuple(r)) for v, r in values)))
    return tuple(found)


def agreement_document(found: Sequence[Disagreement], num_ranks: int, *, everything: bool = False) -> Document:
    """The first disagreements, or all."""
    title = f"agreement of {num_ranks} ranks"
    if not found:
        return Document(title, (Section("", (Item(words(Span("equal", Tone.GOOD), f": {num_ranks} ranks agree")),)),))
    shown = found if everything else found[:FIRST]
    head = Item(words(Span(f"ranks disagree in {len(found)} fields", Tone.BAD)))
    items = [_item(d) for d in shown]
    if len(found) > len(shown):
        items.append(Item(words(f"{len(found) - len(shown)} more with --all")))
    return Document(title, (Section("", (head, *items)),))


def _item(found: Disagreement) -> Item:
    details = tuple(words(f"{v.value} on {_ranks(v.ranks)}") for v in found.values)
    return Item(words(Span(found.reason.name, Tone.CODE), f" {found.path}"), details)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranges(ranks)}"
