"""Which kernels run a number of tokens, and with which tiles: from a measured table, or from the cost model.

Light on purpose: the resolver asks, long before a kernel is imported. Tables are read once, at import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.partition import expert_partition
from moe_core.contract.problem import MoEProblem
from moe_core.contract.tuning import Tuning
from moe_core.contract.vocabulary import DType
from moe_plugins.triton_moe.cost import MULTIPROCESSORS, Shape
from moe_plugins.triton_moe.formats import NONE, PLAIN, format_name
from moe_plugins.triton_moe.options import GLUON, GROUPED, NO_SORT, PATHS, SWAP_AB, options, paths_of, predicted
from moe_plugins.triton_moe.table import Entry, Table

GLUON_VERSIONS: Final = ("3.6",)
"""Of Triton, whose Gluon the kernel is written for."""
MOST_UNSORTED: Final = 64
"""Tokens up to which the path without a map is considered."""

_TABLES: Final = {
    (table.device, table.triton): table
    for path in sorted((Path(__file__).parent / "tables").glob("*.json"))
    for table in (Table.parse(path.read_text(), f"tables/{path.name}"),)
}


class Machine(NamedTuple):
    """What a choice depends on beside the shape."""

    device: str
    """The device's name, as CUDA gives it."""
    multiprocessors: int
    triton: str
    """Version, ``major.minor``."""


class Choice(NamedTuple):
    """How to run a number of tokens."""

    path: str
    config: Mapping[str, Any]
    """Fields of the path's config that differ from its defaults."""
    source: Literal["table", "nearest", "cost_model"]
    key: str
    microseconds: float
    note: str = ""
    """What the table lacks."""


def machine_of(device: str, multiprocessors: int | None, triton: str | None) -> Machine:
    """The machine, with unknown facts as on the one that the cost model was fitted to."""
    return Machine(device, multiprocessors or MULTIPROCESSORS, ".".join((triton or "unknown").split(".")[:2]))


def usable(paths: Sequence[str], machine: Machine, shape: Shape) -> tuple[str, ...]:
    """Those of `paths` that run here."""
    # Tokens that are gathered come in boxes of 64 columns, with none past the end of a row.
    gluon = machine.triton in GLUON_VERSIONS and (shape.kernels != PLAIN or shape.hidden % 64 == 0)
    there = paths_of(shape)
    return tuple(path for path in paths if path in there and (path != GLUON or gluon))


def add_table(path: str | Path) -> None:
    """Choose by what ``moe tune --kernels --table`` wrote to `path`, too; its entries replace equal ones.

    Give every rank the same file, before the first layer is resolved. Raises :class:`TableError`, which names the file.
    """
    path = Path(path)
    given = Table.parse(path.read_text(), path.name)
    place = given.device, given.triton
    known = _TABLES.get(place)
    _TABLES[place] = given if known is None else known.merged(given.entries)
    plan.cache_clear()


@lru_cache(maxsize=4096)
def plan(machine: Machine, shape: Shape, tokens: int, paths: tuple[str, ...] = PATHS) -> Choice:
    """The fastest of `paths` for `tokens` > 0 tokens that are routed to the experts of `shape`.

    What was measured is preferred to what is computed.
    """
    paths = usable(paths, machine, shape)
    fitting = [path for path in paths if path != NO_SORT or tokens <= MOST_UNSORTED] or paths
    table, lacks = _table(machine)
    found = [] if table is None else [table.nearest(shape, tokens, path) for path in fitting]
    measured = [_measured(entry, machine, shape, tokens, lacks) for entry in found if entry is not None]
    if measured:
        # Where just this was measured, all paths were tried: what is carried over from elsewhere does not outdo them.
        exact = [choice for choice in measured if choice.source == "table"]
        return min(exact or measured, key=lambda choice: choice.microseconds)
    key = _key(machine.device, shape, tokens, machine.triton)
    note = lacks or f"no entry near E{shape.experts} H{shape.hidden} I{shape.inner} K{shape.top_k}"
    known = [option for path in fitting for option in options(path, shape, tokens, machine.multiprocessors)]
    best = min(known, key=lambda option: option.microseconds)
    return Choice(best.path, best.config, "cost_model", key, best.microseconds, note)


def _table(machine: Machine) -> tuple[Table | None, str]:
    exact = _TABLES.get((machine.device, machine.triton))
    if exact is not None:
        return exact, ""
    others = [table for (device, _), table in _TABLES.items() if device == machine.device]
    if others:
        return others[-1], f"no entries for triton {machine.triton}"
    return None, f"no entries for {machine.device}"


def _measured(entry: Entry, machine: Machine, shape: Shape, tokens: int, lacks: str) -> Choice:
    if not lacks and entry.shape != shape:
        lacks = f"no entry for {_key(machine.device, shape, tokens, machine.triton)}"
    elif not lacks and entry.tokens != tokens:
        lacks = f"no entry for {tokens} token{'s'[: tokens != 1]}"
    sms = machine.multiprocessors
    now = predicted(entry.path, shape, tokens, sms, entry.config)
    ratio = now / predicted(entry.path, entry.shape, entry.tokens, sms, entry.config)
    return Choice(
        path=entry.path,
        config=entry.config,
        source="nearest" if lacks else "table",
        key=_key(machine.device, entry.shape, entry.tokens, machine.triton),
        microseconds=entry.microseconds * ratio,
        note=lacks,
    )


def _key(device: str, shape: Shape, tokens: int, triton: str) -> str:
    sizes = f"E{shape.experts} H{shape.hidden} I{shape.inner} K{shape.top_k}{'' if shape.gated else ' not gated'}"
    stored = "" if shape.format == NONE else f" {shape.format}"
    return f"{device} {shape.dtype}{stored} {sizes}, {tokens} token{'s'[: tokens != 1]}, triton {triton}"


def reaching(rows: int, num_local: int, num_slots: int) -> int:
    """As many tokens as would give a rank with all slots the pairs that `rows` give one with `num_local`."""
    return max(-(-rows * num_local // num_slots), 1)


def tuning(paths: tuple[str, ...], problem: MoEProblem, deployment: MoEDeployment, tokens: int) -> Tuning | None:
    """What `paths` are expected to take on the fullest rank; ``None`` where a size or the device is unknown."""
    shape, place = _shape(problem, deployment), deployment.environment
    if shape is None or place.device_name is None or place.device is None:
        return None
    machine = machine_of(place.device_name, place.num_sms, place.package_version("triton"))
    if not usable(paths, machine, shape):
        return None
    num_slots = deployment.num_slots or problem.num_experts or 1
    found = plan(machine, shape, reaching(tokens * deployment.dp_size, shape.experts, num_slots), paths)
    return Tuning(source=found.source, key=found.key, microseconds=found.microseconds, note=found.note)


def _shape(problem: MoEProblem, deployment: MoEDeployment) -> Shape | None:
    """The fullest rank's; ``None`` where a size or the format is unknown, or no rank could have its share."""
    hidden, inner, experts, top_k = (
        problem.hidden_size, problem.intermediate_size, problem.num_experts, problem.top_k
    )  # fmt: skip
    num_slots = deployment.num_slots or experts
    stored = None if problem.quant is None else format_name(problem.quant, problem.quant_group_size)
    if hidden is None or inner is None or num_slots is None or top_k is None or stored is None:
        return None
    if num_slots < deployment.ep_size:
        return None
    return Shape(
        dtype=str(problem.dtype_act or DType.BFLOAT16),
        experts=max(expert_partition(num_slots, deployment.ep_size)),
        top_k=top_k,
        hidden=hidden,
        inner=-(-inner // deployment.tp_size),
        gated=problem.is_gated is not False,
        format=stored,
    )


experts_tuning = partial(tuning, PATHS)
no_sort_tuning = partial(tuning, (NO_SORT,))
swap_ab_tuning = partial(tuning, (SWAP_AB,))
grouped_tuning = partial(tuning, (GROUPED,))
gluon_tuning = partial(tuning, (GLUON,))
