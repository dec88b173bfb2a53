"""What ``bench`` and ``tune`` share: the shapes that are meant, and the device that they are measured on."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from moe_core.cli import options as opt
from moe_core.cli.errors import BadInputError, bad_input
from moe_core.cli.resolution import chosen_groups
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.memory import bits_per_weight
from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import Device, DType, QuantAlgo
from moe_core.explain.phrases import ranges
from moe_core.ingest import ingest
from moe_core.measure.shapes import SHAPES, TOKENS, Shape, parse_shapes
from moe_core.registry import load_registry

if TYPE_CHECKING:
    from moe_core.execution import ParallelGroups
    from moe_core.measure.site import Site

SECONDS = 0.25


def add_measuring(parser: argparse.ArgumentParser) -> None:
    """What is measured, on which device, and for how long."""
    parser.add_argument("config", nargs="?", metavar="CONFIG", help="a config.json, or the folder that holds it")
    parser.add_argument(
        "--shape", action="append", default=[], metavar="SHAPE",
        help="E,K,H,I[,dtype[,activation]][,format], the name of a published model's sizes and perhaps a format, "
        "or a set of shapes: all, quantized",
    )  # fmt: skip
    parser.add_argument("--layers", metavar="RANGE", help="only these layers: 3, 0-2, 4-")
    parser.add_argument(
        "--unquantized", action="store_true", help="compute in the activation's type instead of the config's format"
    )
    opt.add_request(parser)
    opt.add_device(parser)
    parser.add_argument(
        "--tokens", type=opt.numbers, default=TOKENS, metavar="N[,N]",
        help=f"tokens per rank (default {','.join(map(str, TOKENS))})",
    )  # fmt: skip
    parser.add_argument(
        "--routing", choices=("uniform", "zipf"), default="uniform", help="how experts are drawn (default uniform)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of weights and tokens (default 0)")
    parser.add_argument(
        "--seconds", type=opt.seconds, default=SECONDS, metavar="S",
        help=f"spent on a candidate at one number of tokens (default {SECONDS})",
    )  # fmt: skip
    parser.add_argument(
        "--rest", type=opt.seconds, default=0.0, metavar="S",
        help="leave a GPU idle so long before each long replay, which then has the clock of a burst (default 0)",
    )  # fmt: skip


def shapes(options: argparse.Namespace) -> tuple[Shape, ...]:
    """Everything that the options name, each problem once."""
    if options.config is None and not options.shape:
        raise BadInputError(f"found neither CONFIG nor --shape, needed one; try: --shape {next(iter(SHAPES))}")
    found = [] if options.config is None else _of_config(options)
    with bad_input("--shape"):
        found += [shape for text in options.shape for shape in parse_shapes(text)]
    for shape in found:
        _check(shape)
    return tuple(found)


def site(
    options: argparse.Namespace,
    deployment: Callable[[MoEEnvironment], MoEDeployment],
    groups: ParallelGroups | None = None,
) -> Site:
    """This machine's device, its candidates, and how long each is measured. The first import of torch."""
    import torch

    from moe_core.execution import ParallelGroups
    from moe_core.measure.site import Site
    from moe_core.measure.timing import Budget

    if 0 in options.tokens:
        raise BadInputError(f"--tokens: found {','.join(map(str, options.tokens))}, needed counts above 0")
    registry = load_registry(opt.bans(options))
    environment = opt.here(options, registry)
    return Site(
        catalog=registry.catalog,
        deployment=deployment(environment),
        device=torch.device(_device(environment)),
        request=opt.request(options),
        groups=groups or ParallelGroups(),
        routing=options.routing,
        seed=options.seed,
        budget=Budget(options.seconds, rest=options.rest),
    )


def _device(environment: MoEEnvironment) -> str:
    if environment.device is not Device.CUDA:
        return "cpu"
    import torch

    return f"cuda:{torch.cuda.current_device()}"


def _of_config(options: argparse.Namespace) -> list[Shape]:
    with bad_input("model"):
        source = ingest(options.config)
    layers: dict[MoEProblem, list[int]] = {}
    for group in chosen_groups(source, options.layers):
        problem = group.problem
        if options.unquantized:
            problem = problem.evolve(quant=QuantAlgo.NONE, quant_group_size=None)
        layers.setdefault(problem, []).extend(group.layers)
    if len(layers) == 1:
        return [Shape(name=source.name, problem=next(iter(layers)))]
    return [Shape(name=f"{source.name} {ranges(those)}", problem=problem) for problem, those in layers.items()]


def _check(shape: Shape) -> None:
    problem = shape.problem
    if not problem.is_fully_specified or problem.activation is None:
        raise BadInputError(f"{shape.name}: a size or the activation is unknown, and nothing can be measured without")
    if problem.quant is None:
        raise BadInputError(f"{shape.name}: the format of the experts is unknown; try: --unquantized")
    bits = bits_per_weight(problem.quant, problem.dtype_act or DType.BFLOAT16, problem.quant_group_size)
    widths = (problem.hidden_size or 0, problem.intermediate_size or 0)
    if bits < 8 and any(width % 2 for width in widths):
        raise BadInputError(
            f"{shape.name}: found widths {widths[0]} and {widths[1]}, needed even ones, since two four-bit codes share "
            "a byte; try: --unquantized"
        )
