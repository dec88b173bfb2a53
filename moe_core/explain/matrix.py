"""The support matrix: what every candidate of a catalog declares, as a table and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from moe_core.contract.base import Frozen
from moe_core.contract.candidate import MoECandidate
from moe_core.contract.catalog import Catalog
from moe_core.contract.gates import gates_of
from moe_core.contract.reasons import MoERejectReason
from moe_core.contract.vocabulary import CandidateKind
from moe_core.explain.document import Section, Table, Text, muted, name, words
from moe_core.explain.phrases import MANY_OF

HEADINGS = ("candidate", "family", "priority", "adapter", "SM", "formats", "needs")


class Support(Frozen):
    """One candidate's limits in short."""

    identity: str
    kind: CandidateKind
    family: str
    title: str
    priority: int
    runs: bool
    """Whether an installed plugin can run it."""
    sm: str
    formats: str
    needs: tuple[str, ...]
    """Packages, with versions."""
    limits: tuple[tuple[MoERejectReason, str], ...]
    """Every requirement, with the reason that its failure gives."""

    @property
    def cells(self) -> tuple[str, ...]:
        """The row under :data:`HEADINGS`."""
        runs = "yes" if self.runs else "none"
        needs = ", ".join(self.needs) or "-"
        return (self.identity, self.family, str(self.priority), runs, self.sm, self.formats, needs)


def support(catalog: Catalog) -> tuple[Support, ...]:
    """Every candidate, by kind, the most preferred first."""
    order = list(CandidateKind)
    rows = map(_support, catalog.candidates)
    return tuple(sorted(rows, key=lambda r: (order.index(r.kind), -r.priority, r.identity)))


def _support(candidate: MoECandidate) -> Support:
    gates = gates_of(candidate)
    return Support(
        identity=candidate.identity,
        kind=candidate.kind,
        family=candidate.family,
        title=candidate.title,
        priority=candidate.priority,
        runs=candidate.factory is not None,
        sm=_always(candidate, "sm"),
        formats=_always(candidate, "quant"),
        needs=tuple(
            f"{g.fact.removeprefix('package:')} {g.test.needed()}".removesuffix(" installed")
            for g in gates
            if g.fact.startswith("package:") and not g.when and not g.unless
        ),
        limits=tuple((g.reason, f"{g.fact}: {g.needed}") for g in gates),
    )


def _always(candidate: MoECandidate, fact: str) -> str:
    """What is needed of a fact whatever else holds; conditional limits are in the list of all limits."""
    gates = [g for g in gates_of(candidate) if g.fact == fact]
    needed = [g.test.needed() for g in gates if not g.when and not g.unless]
    return "; ".join(dict.fromkeys(needed)) or ("see limits" if gates else "any")


def support_sections(catalog: Catalog) -> tuple[Section, ...]:
    """The matrix as tables of a document, one per kind."""
    found = support(catalog)
    sections = []
    for kind in CandidateKind:
        rows = [(words(name(row.identity)), *map(_cell, row.cells[1:])) for row in found if row.kind is kind]
        if rows:
            sections.append(Section(f"{MANY_OF[kind]} ({len(rows)})", (Table(HEADINGS, tuple(rows)),)))
    return tuple(sections)


def _cell(text: str) -> Text:
    return words(muted(text) if text in ("any", "-", "none") else text)


def support_matrix(catalog: Catalog) -> str:
    """The matrix as Markdown, with every limit of every candidate below it. Equal catalogs give equal text."""
    return "\n".join(_markdown(support(catalog))) + "\n"


def _markdown(rows: tuple[Support, ...]) -> Iterator[str]:
    for kind in CandidateKind:
        of_kind = [row for row in rows if row.kind is kind]
        if not of_kind:
            continue
        yield from (
            f"## {MANY_OF[kind].capitalize()}",
            "",
            f"| {' | '.join(HEADINGS)} |",
            f"|{' --- |' * len(HEADINGS)}",
        )
        yield from (f"| `{row.identity}` | {' | '.join(row.cells[1:])} |" for row in of_kind)
        yield ""
        for row in of_kind:
            yield from (f"### `{row.identity}`", "", row.title, "")
            yield from (f"- `{reason.name}` {limit}" for reason, limit in row.limits)
            yield ""
