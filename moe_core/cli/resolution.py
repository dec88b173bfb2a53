"""From the options of ``explain``, ``plan`` and ``run`` to a model's report."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moe_core.cli import options as opt
from moe_core.cli.errors import BadInputError, bad_input
from moe_core.contract.evidence import Evidence
from moe_core.contract.model_report import MoEModelReport
from moe_core.ingest import IngestedModel, LayerGroup, ingest
from moe_core.registry import Registry, load_registry
from moe_core.resolve.model import in_layers, resolve_model

if TYPE_CHECKING:
    from moe_core.explain import Context


@dataclass(frozen=True, slots=True)
class Resolution:
    """A model, the machine that it was resolved for, and the outcome."""

    source: IngestedModel
    machine: str
    """Why the machine is the one that was resolved for."""
    registry: Registry
    model: MoEModelReport

    @property
    def context(self) -> Context:
        """What an explanation shows beside the report."""
        from moe_core.explain import Context
        from moe_core.registry import notes_on

        reports = dict.fromkeys(group.report for group in self.model.layers)
        notes = dict.fromkeys(note for report in reports for note in notes_on(report, self.registry))
        return Context(source=self.source, machine=self.machine, notes=tuple(notes))


def add_resolution(parser: argparse.ArgumentParser) -> None:
    """Everything that a resolution takes, but token counts."""
    parser.add_argument("config", metavar="CONFIG", help="a config.json, or the folder that holds it")
    opt.add_machine(parser)
    opt.add_deployment(parser)
    opt.add_request(parser)
    parser.add_argument("--layers", metavar="RANGE", help="only these layers: 3, 0-2, 4-")
    parser.add_argument("--evidence", metavar="FILE", help="measured timings, as JSON")


def resolve(
    options: argparse.Namespace, *, max_num_tokens: int | None = None, token_buckets: Sequence[int] = ()
) -> Resolution:
    """Read the model, look at the machine that is meant, and resolve every layer that was asked for."""
    with bad_input("model"):
        source = ingest(options.config)
    registry = load_registry(opt.bans(options))
    environment, why = opt.machine(options, registry)
    deployment = opt.deployment(options, environment, max_num_tokens=max_num_tokens)
    request = opt.request(options, token_buckets=tuple(token_buckets))
    groups, evidence = chosen_groups(source, options.layers), _evidence(options.evidence)
    # What was asked for may name nothing, and so may a scope: errors of the request, found by resolving.
    with bad_input("request"):
        model = resolve_model(
            groups, deployment, candidates=registry.catalog, request=request, evidence=evidence, model=source.name
        )
    return Resolution(source, why, registry, model)


def chosen_groups(source: IngestedModel, layers: str | None) -> tuple[LayerGroup, ...]:
    """The groups of layers that ``--layers`` leaves."""
    if layers is None:
        return source.groups
    with bad_input("--layers"):
        kept = [(g, tuple(i for i in g.layers if in_layers(layers, i))) for g in source.groups]
    groups = tuple(group.evolve(layers=indices) for group, indices in kept if indices)
    if not groups:
        raise BadInputError(
            f"--layers {layers}: found no MoE layer there, needed one of "
            f"{', '.join(str(i) for g in source.groups for i in g.layers)}"
        )
    return groups


def _evidence(path: str | None) -> Evidence:
    if path is None:
        return Evidence()
    with bad_input(f"evidence {path}"):
        return Evidence.from_json(Path(path).read_bytes())
