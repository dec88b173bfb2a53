"""A report as a document: answers first, then what they stand on, then who was refused, hints last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moe_core.contract.decision import Decision
from moe_core.contract.model_report import MoEModelReport
from moe_core.contract.report import MoEResolutionReport
from moe_core.explain.details import also_eligible, hint_section, rejected
from moe_core.explain.document import Block, Document, Item, Section, Span, Tone, muted, words
from moe_core.explain.heads import assumed, degraded, head
from moe_core.explain.hints import hints_of
from moe_core.explain.inputs import (
    deployment_row,
    keys_row,
    layers_row,
    memory_row,
    problem_row,
    request_row,
    total_row,
)
from moe_core.explain.machine import machine_row
from moe_core.explain.outcome import Outcome, alone, outcomes

if TYPE_CHECKING:
    from moe_core.ingest import IngestedModel


@dataclass(frozen=True, slots=True)
class Context:
    """What a report does not hold, and its readers want to see beside it."""

    source: IngestedModel | None = None
    """The model that was read."""
    machine: str = ""
    """Why the machine is the one that was resolved for."""
    notes: tuple[str, ...] = ()
    """Remarks of plugins, warnings of the caller."""


NO_CONTEXT = Context()


def explain(
    report: MoEModelReport | MoEResolutionReport, *, everything: bool = False, context: Context = NO_CONTEXT
) -> Document:
    """The document of a report.

    `everything` lists every reason of every candidate, and every hint. Who has no winner gets every reason unasked.
    """
    model = report if isinstance(report, MoEModelReport) else alone(report)
    found = outcomes(model)
    sections = [Section("", tuple(_answer(outcome))) for outcome in found]
    sections.append(Section("", tuple(_inputs(model, context))))
    for outcome, scope in _distinct(found, lambda d: (d.kind, d.winner, d.eligible)):
        sections += also_eligible(outcome, scope)
    for outcome, scope in _distinct(found, lambda d: (d.kind, d.rejected)):
        sections += rejected(outcome, scope, every_reason=everything or not model.ok)
    sections += _remarks(found, context)
    hints = hints_of(outcome.report for outcome in found)
    sections += hint_section(hints, resolved=model.ok, everything=everything)
    return Document(model.model or "MoE layer", tuple(section for section in sections if section.blocks))


def _answer(outcome: Outcome) -> Iterator[Block]:
    report = outcome.report
    yield from head(outcome)
    yield from map(degraded, report.degradations)
    yield from assumed(outcome)
    yield problem_row(report.problem)
    yield memory_row(report.memory)


def _inputs(model: MoEModelReport, context: Context) -> Iterator[Block]:
    if not model.layers:
        return
    if context.source is not None:
        yield layers_row(context.source)
    # Groups differ only in what they count as reserved by the others.
    deployment = model.layers[0].report.deployment
    for request in dict.fromkeys(group.report.request for group in model.layers):
        yield request_row(request)
    yield deployment_row(deployment)
    yield machine_row(deployment.environment, context.machine)
    if sum(len(group.layers) for group in model.layers) > 1:
        yield total_row(model)
    if context.source is not None:
        yield keys_row(context.source)


def _distinct(found: Sequence[Outcome], part: Callable[[Decision], object]) -> list[tuple[Outcome, str]]:
    """One outcome of those whose decisions are equal in `part`, and the scope that they have together."""
    same: dict[object, list[Outcome]] = {}
    for outcome in found:
        same.setdefault(tuple(map(part, outcome.decisions)), []).append(outcome)
    if len(same) == 1:
        return [(found[0], "")]
    return [(group[0], f" for {'; '.join(outcome.scope for outcome in group)}") for group in same.values()]


def _remarks(found: Sequence[Outcome], context: Context) -> Iterator[Section]:
    reports = [outcome.report for outcome in found]
    items: list[Block] = [
        Item(words(Span(f"plugin {error.plugin}", Tone.BAD), f" {error.reason}: {error.error}"))
        for error in dict.fromkeys(error for report in reports for error in report.plugin_errors)
    ]
    source = () if context.source is None else context.source.notes
    notes = dict.fromkeys((*(note for report in reports for note in report.notes), *source, *context.notes))
    items += [Item(words(muted(note))) for note in notes]
    if items:
        yield Section("notes", tuple(items))
