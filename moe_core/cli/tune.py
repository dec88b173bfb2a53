"""``moe tune``: what is fastest on this machine, or on these ranks, as a file that a selection takes."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_core.cli import measuring
from moe_core.cli import options as opt
from moe_core.cli.errors import BadInputError, bad_input
from moe_core.cli.output import say, show, show_json
from moe_core.contract.evidence import Evidence

if TYPE_CHECKING:
    from moe_core.execution import ParallelGroups
    from moe_core.measure.tune import RankBench


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    measuring.add_measuring(parser)
    opt.add_deployment(parser)
    parser.add_argument("--save", metavar="FILE", help="write the evidence, for --evidence")
    parser.add_argument("--kernels", action="store_true", help="tune the candidates' own kernels, and write --table")
    parser.add_argument("--table", metavar="FILE", help="the candidates' tuning table; what it holds already is kept")


def run(options: argparse.Namespace) -> int:
    """Measure, on all ranks of a ``torchrun`` together; 0 when something was found."""
    if options.kernels and not options.table:
        raise BadInputError("--kernels: found no --table, needed a file for what is found; try: --table tuned.json")
    for path in (options.save, options.table):
        _check_folder(path)
    shapes = measuring.shapes(options)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and options.ep is None and options.tp is None:
        options.ep = world
    with _ranks(options, world) as groups:
        site = measuring.site(options, lambda environment: opt.deployment(options, environment), groups)
        from moe_core.measure.ceilings import known_ceilings, measured_ceilings
        from moe_core.measure.tune import RankBench

        ceilings = known_ceilings(site.deployment.environment) or measured_ceilings(site.device)
        benches = (RankBench(shape.problem, options.tokens, site, ceilings) for shape in shapes)
        if options.kernels:
            return _kernels(benches, options, speaks=groups.rank == 0)
        return _candidates(benches, options, speaks=groups.rank == 0)


def _candidates(benches: Iterator[RankBench], options: argparse.Namespace, *, speaks: bool) -> int:
    from moe_core.measure.tune import agreed, evidence_of, measure_candidates

    found = Evidence()
    for bench in benches:
        trials = list(measure_candidates(bench))
        source = f"moe tune on {bench.site.deployment.environment.device_name or 'cpu'}, {options.routing} routing"
        more = agreed(evidence_of(bench.problem, trials, bench.site, source))
        found = Evidence(source=more.source, measurements=(*found.measurements, *more.measurements))
        if speaks:
            for tokens, row in trials:
                if row.is_wrong:
                    say(f"{row.name} is wrong at {tokens} tokens, so its time is no evidence: {row.verdict}")
            if options.save:
                _write(options.save, found.to_json())
    if speaks:
        _show_evidence(found, options)
    return 0 if found.measurements else 1


def _kernels(benches: Iterator[RankBench], options: argparse.Namespace, *, speaks: bool) -> int:
    from moe_core.measure.tune import tune_kernels

    table, found = _existing(options.table), []
    for bench in benches:
        for subject, backend, tuned in tune_kernels(bench):
            if tuned and speaks:
                table = backend.table(tuned, table)
                _write(options.table, json.dumps(table, indent=1))
            found += [{"identity": subject.name, **_as_json(one)} for one in tuned]
    if speaks and not found:
        say("no candidate here can be tuned")
    if speaks:
        show_json(found)
    return 0 if found else 1


def _as_json(tuned: Any) -> dict[str, Any]:
    return {
        "tokens": tuned.tokens,
        "microseconds": tuned.microseconds,
        "default_microseconds": tuned.default_microseconds,
        "config": dict(tuned.config),
    }


def _show_evidence(found: Evidence, options: argparse.Namespace) -> None:
    if options.json:
        show_json(found.to_json())
        return
    from moe_core.measure.view import evidence_document

    show(evidence_document(found))


@contextmanager
def _ranks(options: argparse.Namespace, world: int) -> Iterator[ParallelGroups]:
    """This rank's place. ``torchrun`` sets the variables; gloo will do, since only results are exchanged."""
    from moe_core.execution import ParallelGroups

    tp_size, ep_size = options.tp or 1, options.ep or 1
    if ep_size * tp_size != world:
        raise BadInputError(
            f"found {world} ranks, needed ep {ep_size} x tp {tp_size}; try: torchrun --nproc-per-node "
            f"{ep_size * tp_size} -m moe_core tune"
        )
    if world == 1:
        yield ParallelGroups()
        return
    import torch
    import torch.distributed as dist

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    ours = not dist.is_initialized()
    if ours:
        dist.init_process_group("gloo")
    try:
        ep_rank, tp_rank = divmod(dist.get_rank(), tp_size)
        yield ParallelGroups(rank=dist.get_rank(), ep_rank=ep_rank, tp_rank=tp_rank, group=dist.group.WORLD)
    finally:
        if ours:
            dist.destroy_process_group()


def _existing(path: str) -> Any:
    if not Path(path).exists():
        return None
    with bad_input(f"--table {path}"):
        return json.loads(Path(path).read_bytes())


def _check_folder(path: str | None) -> None:
    """What took minutes to find must not be lost for want of a place."""
    folder = Path(path or ".").absolute().parent
    if path and not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise BadInputError(f"cannot write {path}: {folder} is no folder that can be written to; make it first")


def _write(path: str, text: str) -> None:
    with bad_input("cannot write"):
        Path(path).write_text(text + "\n", encoding="utf-8")
