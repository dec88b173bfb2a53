"""``moe run``: layers of a model on this machine, with their own or random weights, against their float32 twin."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from moe_core.cli import options as opt
from moe_core.cli.errors import BadInputError, bad_input
from moe_core.cli.output import say, show, show_json
from moe_core.cli.reduce import reduced
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.problem import MoEProblem
from moe_core.contract.report import MoEResolutionReport
from moe_core.contract.vocabulary import Device, QuantAlgo
from moe_core.explain import explain
from moe_core.explain.document import Document, Row, Section, Span, Tone, words
from moe_core.explain.phrases import duration
from moe_core.ingest import IngestedModel, ingest
from moe_core.registry import Registry, load_registry
from moe_core.resolve.model import in_layers
from moe_core.resolve.resolver import resolve_moe_impl

if TYPE_CHECKING:
    from moe_core.cli.stored import StoredLayer
    from moe_core.cli.trial import Measured


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "config", metavar="CONFIG", help="a config.json, or the folder that holds it and perhaps safetensors"
    )
    opt.add_request(parser)
    parser.add_argument(
        "--layer", metavar="N", help="which MoE layer (default: the first), or several: 0-3, 5, 8-, all"
    )
    opt.add_device(parser)
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="tokens of a forward (default 64)")
    parser.add_argument(
        "--full", action="store_true", help="the layer's own size (default: reduced, if weights are random)"
    )
    parser.add_argument(
        "--unquantized", action="store_true", help="compute in the activation's type instead of the config's format"
    )
    parser.add_argument("--repeat", type=int, default=20, metavar="N", help="timed forwards (default 20)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of weights and tokens (default 0)")


def run(options: argparse.Namespace) -> int:
    """Resolve, build, run and compare; 0 when the error is within the declared tolerance."""
    with bad_input("model"):
        source = ingest(options.config)
    registry = load_registry(opt.bans(options))
    environment = opt.here(options, registry)
    trials = [_trial(options, registry, environment, layer, problem) for layer, problem in _layers(options, source)]
    if options.json:
        show_json(_as_json(trials))
    else:
        page = explain(trials[0].report)
        head = _result(trials[0], options) if len(trials) == 1 else _results(trials, options)
        show(Document(page.title, (*head, *page.sections)))
    return 0 if all(trial.passed for trial in trials) else 1


class Trial(NamedTuple):
    """One layer: what was resolved for it, what was changed before, and what was measured."""

    layer: int
    report: MoEResolutionReport
    changes: tuple[str, ...]
    measured: Measured | None
    """``None``: nothing could run."""

    @property
    def passed(self) -> bool:
        """Whether it ran, within the declared tolerance."""
        return self.measured is not None and self.measured.passed


def _trial(
    options: argparse.Namespace, registry: Registry, environment: MoEEnvironment, layer: int, problem: MoEProblem
) -> Trial:
    stored = _stored(options, layer, problem)
    problem, changes = _changed(options, problem, keep_size=options.full or stored is not None)
    with bad_input("request"):
        report = resolve_moe_impl(
            problem, _deployment(options, environment), candidates=registry.catalog, request=opt.request(options)
        )
    return Trial(layer, report, changes, _measure(options, registry, report, stored) if report.ok else None)


def _layers(options: argparse.Namespace, source: IngestedModel) -> list[tuple[int, MoEProblem]]:
    asked, known = options.layer, (*source.moe_layers, *source.draft_layers)
    if asked is None:
        chosen = [source.groups[0].layers[0]]
    elif asked.isdecimal():
        chosen = [int(asked)]
    else:
        with bad_input("--layer"):
            chosen = [layer for layer in known if asked == "all" or in_layers(asked, layer)]
    if not chosen:
        raise BadInputError(f"--layer: {asked!r} names none of the MoE layers {', '.join(map(str, known))}")
    try:
        return [(layer, source.problem_of(layer)) for layer in chosen]
    except KeyError as error:
        raise BadInputError(f"--layer: {error.args[0]}") from error


def _stored(options: argparse.Namespace, layer: int, problem: MoEProblem) -> StoredLayer | None:
    """The layer's own weights; ``None`` when a config was given, or a folder without any."""
    if not any(Path(options.config).glob("*.safetensors*")):
        return None
    from moe_core.cli.stored import StoredLayer

    with bad_input("weights"):
        return StoredLayer.of(options.config, layer, problem)


def _changed(
    options: argparse.Namespace, problem: MoEProblem, *, keep_size: bool
) -> tuple[MoEProblem, tuple[str, ...]]:
    """What is run instead of `problem`, and what was changed."""
    changes: tuple[str, ...] = ()
    if options.unquantized and problem.quant is not QuantAlgo.NONE:
        changes = (f"quant {problem.quant} -> {QuantAlgo.NONE}",)
        problem = problem.evolve(quant=QuantAlgo.NONE, quant_group_size=None)
    if keep_size:
        return problem, changes
    smaller, more = reduced(problem)
    return smaller, (*changes, *more)


def _deployment(options: argparse.Namespace, environment: MoEEnvironment) -> MoEDeployment:
    with bad_input("--tokens"):
        return MoEDeployment(environment=environment, max_num_tokens=options.tokens)


def _measure(
    options: argparse.Namespace, registry: Registry, report: MoEResolutionReport, stored: StoredLayer | None
) -> Measured | None:
    from moe_core.cli.trial import measure
    from moe_core.execution import BindError

    device = report.deployment.environment.device or Device.CPU
    with bad_input("weights"):
        weights = None if stored is None else stored.load(report.problem, device)
    try:
        return measure(
            report, registry.catalog, device=device, num_tokens=options.tokens, repeat=options.repeat,
            seed=options.seed, stored=weights,
        )  # fmt: skip
    except BindError as error:
        say(str(error))
        return None


def _result(trial: Trial, options: argparse.Namespace) -> Iterator[Section]:
    rows = []
    measured, environment = trial.measured, trial.report.deployment.environment
    if measured is not None:
        rows.append(Row("error", _error(measured)))
        on = environment.device_name or environment.device or "cpu"
        time = (
            f"{duration(measured.microseconds)}, median of {options.repeat} forwards of {options.tokens} tokens on {on}"
        )
        rows.append(Row("time", words(time)))
        rows.append(Row("weights", words(measured.weights)))
    if trial.changes:
        rows.append(Row("reduced", words(", ".join(trial.changes))))
    if rows:
        yield Section("", tuple(rows))


def _results(trials: list[Trial], options: argparse.Namespace) -> Iterator[Section]:
    """A line a layer; what follows on the page is the first layer's report."""
    rows = []
    for trial in trials:
        name, measured = f"layer {trial.layer}", trial.measured
        if measured is None:
            rows.append(Row(name, words(Span("nothing ran", Tone.BAD))))
        else:
            winner = trial.report.winner().identity
            rows.append(Row(name, words(*_error(measured), f"; {duration(measured.microseconds)} by {winner}")))
    forwards = (
        f"{len(trials)} layers, {options.repeat} forwards of {options.tokens} tokens each; below, the first's report"
    )
    yield Section("", (*rows, Row("of", words(forwards))))


def _error(measured: Measured) -> tuple[Span, ...]:
    verdict = Span("within", Tone.GOOD) if measured.passed else Span("outside", Tone.BAD)
    declared = "none declared" if measured.tolerance is None else f"{measured.tolerance:.2g}"
    return words(f"{measured.error:.2g} against the float32 twin, ", verdict, f" the tolerance ({declared})")


def _as_json(trials: list[Trial]) -> dict[str, object]:
    if len(trials) == 1:
        return _one_as_json(trials[0])
    layers = [{"layer": trial.layer, **_one_as_json(trial)} for trial in trials]
    return {"passed": all(trial.passed for trial in trials), "layers": layers}


def _one_as_json(trial: Trial) -> dict[str, object]:
    report, measured = trial.report, trial.measured
    result: dict[str, object] = {"passed": trial.passed, "reduced": list(trial.changes)}
    if measured is not None:
        result |= {
            "relative_error": measured.error,
            "tolerance": measured.tolerance,
            "microseconds": measured.microseconds,
            "weights": measured.weights,
        }
    return {**result, "report": report.model_dump(mode="json")}
