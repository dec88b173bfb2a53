"""A report as flat paths and values: what differences and agreement are computed on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from moe_core.contract.decision import Decision
from moe_core.contract.model_report import MoEModelReport
from moe_core.contract.predicate import show
from moe_core.contract.report import MoEResolutionReport
from moe_core.explain.outcome import alone
from moe_core.explain.phrases import ranges

Flat: TypeAlias = Mapping[str, str]
INPUTS = ("problem", "deployment", "request", "catalog")


def flatten(report: MoEModelReport | MoEResolutionReport) -> Flat:
    """Every input, winner and refusal of a report, by path: ``deployment.ep_size``, ``backend.winner``.

    Paths of one of several layer groups start with its layers: ``layers 3-60: problem.quant``.
    """
    model = report if isinstance(report, MoEModelReport) else alone(report)
    flat: dict[str, str] = {}
    for group in model.layers:
        scope = f"{group.role} layers {ranges(group.layers)}: " if len(model.layers) > 1 else ""
        flat |= {scope + path: value for path, value in _of_report(group.report)}
    return flat


def _of_report(report: MoEResolutionReport) -> Iterator[tuple[str, str]]:
    for field in INPUTS:
        value = getattr(report, field)
        yield from _of_value(field, value if isinstance(value, str) else value.model_dump(mode="json"))
    for decision in report.decisions:
        yield from _of_decision(decision)
    for rejection in report.invalid:
        yield f"invalid.{rejection.fact}", f"{show(rejection.found)}, needed {rejection.needed}"
    for error in report.plugin_errors:
        yield f"plugin_errors.{error.plugin}", error.error


def _of_value(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _of_value(f"{path}.{key}", inner)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        yield from _of_named(path, value)
    else:
        yield path, show(tuple(value) if isinstance(value, list) else value)


def _of_named(path: str, items: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Entries by their name where they have one (packages, flags …), so that an added one shifts no other."""
    for index, item in enumerate(items):
        rest = {key: value for key, value in item.items() if key != "name"}
        [*_, last] = rest.values()
        yield from _of_value(f"{path}.{item.get('name', index)}", last if len(rest) == 1 else rest)


def _of_decision(decision: Decision) -> Iterator[tuple[str, str]]:
    upto = "" if decision.token_bucket is None else f" up to {decision.token_bucket} tokens"
    path = f"{decision.kind}{upto}"
    yield f"{path}.winner", show(decision.winner) if decision.winner else "none"
    yield f"{path}.selected_by", decision.selected_by
    for candidate in decision.eligible:
        yield f"{path}.{candidate.identity}", "eligible"
        if (tuning := candidate.tuning) is not None:
            yield f"{path}.{candidate.identity} tuning", f"{tuning.source} {tuning.key}"
    for refused in decision.rejected:
        yield f"{path}.{refused.identity}", "refused"
        # A reason of its own path: two reports may share one and differ in the next.
        for rejection in refused.rejections:
            reason = f"{rejection.reason.name} {rejection.fact}".rstrip()
            yield f"{path}.{refused.identity} {reason}: needed {rejection.needed}", f"found {show(rejection.found)}"
