"""Groups of options that several commands share, and the values that they mean."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterable
from typing import Any

from moe_core.cli.errors import BadInputError, bad_input
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.request import AUTO, MoERequest, ScopedRequest
from moe_core.contract.vocabulary import Device, LayerRole, QuantAlgo, RequestedBy
from moe_core.environment import current
from moe_core.environment.assuming import assume
from moe_core.environment.gpus import NO_GPU
from moe_core.environment.saved import THIS, resolve_environment
from moe_core.registry import Registry

GIB = 1024**3


def add_machine(parser: argparse.ArgumentParser) -> None:
    """Which machine to ask about."""
    group = parser.add_argument_group("machine")
    group.add_argument("--hardware", metavar="NAME", help="a preset such as h200, or 'this' (default)")
    group.add_argument("--environment", metavar="FILE", help="a machine saved by `moe environment --save`")
    group.add_argument(
        "--assume", action="append", default=[], metavar="WHAT", help="as if this were so: flashinfer==0.7.2"
    )


def machine(options: argparse.Namespace, registry: Registry | None) -> tuple[MoEEnvironment, str]:
    """The environment that the options name, and why it is that one."""
    if options.hardware and options.environment:
        raise BadInputError("--hardware and --environment were both given; one machine is needed: drop one")
    text = options.environment or options.hardware or THIS
    with bad_input("machine"):
        environment = assume(resolve_environment(text, registry), options.assume)
    why = "this machine; --hardware asks about another" if text == THIS else ""
    if options.assume:
        why = "; ".join(filter(None, (why, f"assuming {', '.join(options.assume)}")))
    return environment, why


def add_device(parser: argparse.ArgumentParser) -> None:
    """Which device of this machine to run on."""
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")


def here(options: argparse.Namespace, registry: Registry) -> MoEEnvironment:
    """This machine, as seen from the device that the options name."""
    environment = current(registry)
    if options.device == "cuda" and environment.device is not Device.CUDA:
        raise BadInputError(f"--device cuda: found {environment.device or 'no known device'} here, needed a GPU")
    if options.device == "cpu":
        return environment.evolve(**NO_GPU, device_name=None, device_memory=None)
    return environment


_SIZES = {
    "--ep": "MoE expert parallelism (default 1)",
    "--tp": "MoE tensor parallelism (default 1); the world is ep x tp",
    "--dp": "attention data parallelism (default 1)",
    "--nodes": "nodes that the ranks are spread over",
    "--slots": "EPLB slots over all ranks",
    "--dwdp": "distributed weight data parallelism (default 1)",
    "--chunk-tokens": "most tokens in one chunk of the layer",
    "--max-dispatch-tokens": "tokens per rank that low-latency dispatch buffers are sized for",
}


def add_deployment(parser: argparse.ArgumentParser) -> None:
    """Parallel sizes and switches."""
    group = parser.add_argument_group("deployment")
    for flag, meaning in _SIZES.items():
        group.add_argument(flag, type=int, metavar="N", help=meaning)
    group.add_argument("--eplb", action="store_true", help="expert-parallel load balancing")
    group.add_argument("--graph", choices=("none", "piecewise", "full"), default="none", help="CUDA graph capture")
    group.add_argument("--lora", action="store_true", help="LoRA on the routed experts")
    group.add_argument("--batch-invariant", action="store_true", help="no result may depend on the rest of the batch")
    group.add_argument("--reserve", type=float, default=0.0, metavar="GIB", help="memory that others hold on a device")


def deployment(options: argparse.Namespace, environment: MoEEnvironment, **more: Any) -> MoEDeployment:
    """The deployment that the options describe."""
    with bad_input("deployment"):
        return MoEDeployment(
            environment=environment,
            ep_size=_or_one(options.ep),
            tp_size=_or_one(options.tp),
            dp_size=_or_one(options.dp),
            num_nodes=options.nodes,
            eplb_enabled=options.eplb,
            num_slots=options.slots,
            dwdp_size=_or_one(options.dwdp),
            moe_max_num_tokens=options.chunk_tokens,
            max_dispatch_tokens=options.max_dispatch_tokens,
            cuda_graph=options.graph,
            moe_lora_enabled=options.lora,
            batch_invariant=options.batch_invariant,
            reserved_memory=int(options.reserve * GIB),
            **more,
        )


def _or_one(given: int | None) -> int:
    return 1 if given is None else given


def add_request(parser: argparse.ArgumentParser) -> None:
    """What to ask for."""
    group = parser.add_argument_group("request")
    what = "a family, an identity or a query; for some layers only as 3-60=NAME, draft=NAME or NVFP4=NAME"
    group.add_argument("--backend", action="append", default=[], metavar="NAME", help=what)
    group.add_argument("--communication", action="append", default=[], metavar="NAME", help="the same, for strategies")
    group.add_argument("--strict", action="store_true", help="fail rather than step down from what was asked for")
    group.add_argument("--ban", action="append", default=[], metavar="NAME", help="identity, family or distribution")
    group.add_argument("--upstream", action="store_true", help="TensorRT-LLM's own rows only")


def request(options: argparse.Namespace, **more: Any) -> MoERequest:
    """The request: an argument beats an environment variable, and that beats auto."""
    scopes: list[ScopedRequest] = []
    asked: dict[str, Any] = {}
    for field in ("backend", "communication"):
        plain = [text for text in getattr(options, field) if "=" not in text]
        if len(plain) > 1:
            raise BadInputError(f"--{field} was given {len(plain)} times: {', '.join(plain)}; one is needed")
        scopes += [_scope(field, text) for text in getattr(options, field) if "=" in text]
        asked |= _asked(field, plain)
    with bad_input("request"):
        return MoERequest(
            **asked, allow_degradation=not options.strict, bans=bans(options), upstream=options.upstream,
            scopes=tuple(scopes), **more,
        )  # fmt: skip


def _asked(field: str, plain: list[str]) -> dict[str, Any]:
    variable = os.environ.get(f"MOE_CORE_{field.upper()}", "")
    if plain:
        text, by = plain[0], RequestedBy.ARGUMENT
    elif variable:
        text, by = variable, RequestedBy.ENVIRONMENT
    else:
        text, by = AUTO, RequestedBy.AUTO
    return {field: text, f"{field}_requested_by": by}


def _scope(field: str, text: str) -> ScopedRequest:
    scope, _, wanted = (part.strip() for part in text.partition("="))
    if not wanted:
        raise BadInputError(f"--{field} {text}: found no name after '=', needed one; try: --{field} {scope}=VANILLA")
    asked: dict[str, Any] = {field: wanted}
    if scope[:1].isdigit():
        return ScopedRequest(layers=scope, **asked)
    for key, vocabulary in (("role", LayerRole), ("quant", QuantAlgo)):
        if scope.casefold() in {word.casefold() for word in vocabulary}:
            return ScopedRequest(**{key: scope}, **asked)
    raise BadInputError(
        f"--{field} {text}: found the scope {scope!r}, needed layers (3-60), target, draft, or a format (NVFP4)"
    )


def bans(options: argparse.Namespace) -> tuple[str, ...]:
    """Bans of the argument and of MOE_CORE_BAN together: neither lifts the other's."""
    given = [*options.ban, os.environ.get("MOE_CORE_BAN", "")]
    return tuple(dict.fromkeys(_names(given)))


def _names(texts: Iterable[str]) -> list[str]:
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def seconds(text: str) -> float:
    """``0.25``, or any other finite time that is not negative."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError(f"found {text!r}, needed seconds, at least 0, such as 0.25")
    return found


def numbers(text: str) -> tuple[int, ...]:
    """``12,0,7`` as counts."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"found {text!r}, needed counts with commas such as 12,0,7")
    return tuple(map(int, parts))
