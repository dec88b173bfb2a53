"""``moe bench``: candidates side by side on this machine, with the floor and with what people use today."""

from __future__ import annotations

import argparse
from pathlib import Path

from moe_core.cli import measuring
from moe_core.cli.errors import bad_input
from moe_core.cli.output import say, show, show_json
from moe_core.contract.deployment import MoEDeployment
from moe_core.measure.results import Bench, Cell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    measuring.add_measuring(parser)
    parser.add_argument("--save", metavar="FILE", help="write all results as JSON, anew after each number of tokens")


def run(options: argparse.Namespace) -> int:
    """Measure; 0 when every answer is right and something ran."""
    shapes = measuring.shapes(options)
    from moe_core.measure.bench import measure_shape
    from moe_core.measure.ceilings import known_ceilings, measured_ceilings
    from moe_core.measure.view import progress_line

    site = measuring.site(options, lambda environment: MoEDeployment(environment=environment))
    environment = site.deployment.environment
    own = measured_ceilings(site.device, site.seed)
    bench = Bench(
        environment=environment,
        ceilings=known_ceilings(environment) or own,
        measured_ceilings=own,
        routing=site.routing,
        seed=site.seed,
        rest=site.budget.rest,
        shapes=shapes,
    )
    _save(bench, options)
    for shape in shapes:
        for cell in measure_shape(shape, options.tokens, site, bench.ceilings):
            bench = _with(bench, cell)
            _save(bench, options)
            say(progress_line(cell))
    _show(bench, options)
    return 0 if _ran(bench) and not any(bench.wrong()) else 1


def _with(bench: Bench, cell: Cell) -> Bench:
    """`bench` with a cell, which takes the place of an earlier one."""
    before = [c for c in bench.cells if (c.shape, c.tokens) != (cell.shape, cell.tokens)]
    return bench.model_copy(update={"cells": (*before, cell)})


def _save(bench: Bench, options: argparse.Namespace) -> None:
    if not options.save:
        return
    part = Path(options.save + ".part")
    with bad_input("cannot write"):
        part.write_text(bench.to_json() + "\n", encoding="utf-8")
        part.replace(options.save)


def _show(bench: Bench, options: argparse.Namespace) -> None:
    if options.json:
        show_json(bench.to_json())
        return
    from moe_core.measure.view import bench_document

    show(bench_document(bench))
    for cell, row in bench.wrong():
        say(f"{cell.shape}, {cell.tokens} tokens: {row.name} is wrong, so there is no ratio: {row.verdict}")


def _ran(bench: Bench) -> bool:
    return any(row.timing is not None for cell in bench.cells for row in cell.rows)
