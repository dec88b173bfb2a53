"""What differs between two reports, path by path."""

from __future__ import annotations

from moe_core.contract.base import Frozen
from moe_core.contract.model_report import MoEModelReport
from moe_core.contract.report import MoEResolutionReport
from moe_core.explain.document import Document, Item, Section, Span, Tone, words
from moe_core.explain.flat import flatten

MISSING = "(not there)"


class Difference(Frozen):
    """A path at which two reports hold different values."""

    path: str
    left: str
    right: str


def differences(
    left: MoEModelReport | MoEResolutionReport, right: MoEModelReport | MoEResolutionReport
) -> tuple[Difference, ...]:
    """Every difference, inputs before what follows from them; empty for equal reports."""
    a, b = flatten(left), flatten(right)
    paths = dict.fromkeys((*a, *b))
    return tuple(
        Difference(path=path, left=a.get(path, MISSING), right=b.get(path, MISSING))
        for path in paths
        if a.get(path) != b.get(path)
    )


def diff_document(found: tuple[Difference, ...], left: str, right: str) -> Document:
    """The differences between two reports with the given names."""
    title = f"{left} and {right}"
    if not found:
        return Document(title, (Section("", (Item(words(Span("equal", Tone.GOOD), f": {title}")),)),))
    head = Item(words(Span(f"{len(found)} differences", Tone.BAD), f" from {left} (-) to {right} (+)"))
    items = tuple(
        Item(words(d.path), (words(Span("- ", Tone.BAD), d.left), words(Span("+ ", Tone.GOOD), d.right))) for d in found
    )
    return Document(title, (Section("", (head,)), Section("", items)))
