"""What is worth measuring for a number of tokens, and a table of what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from moe_plugins.triton_moe.choice import MOST_UNSORTED, Machine
from moe_plugins.triton_moe.cost import MULTIPROCESSORS, Shape
from moe_plugins.triton_moe.formats import PLAIN
from moe_plugins.triton_moe.options import GLUON, GROUPED, NO_SORT, SWAP_AB, paths_of, predicted
from moe_plugins.triton_moe.quant_tiles import quantized_tiles
from moe_plugins.triton_moe.table import Entry, Table

Config = Mapping[str, Any]

HOPELESS: Final = 1.25
"""Times the fastest prediction above which a path is not measured."""
TALL: Final = 4
"""Mean rows of an expert below which tiles of 64 rows and more are not measured."""

_UNSORTED: Final[tuple[Config, ...]] = (
    {},
    {"up_neurons": 4, "up_block": 4096},
    {"up_neurons": 4},
    {"down_block": 1024},
    {"down_block": 1024, "down_warps": 4},
    {"down_block": 2048, "down_warps": 4},
    {"down_columns": 4, "down_block": 256, "down_warps": 4},
)
_NARROW: Final[Config] = {"block": 64, "stages": 4}
_WIDE: Final[Config] = {"columns": 128}
_SWAPPED: Final[tuple[tuple[Config, Config], ...]] = (
    ({}, {}),
    ({}, _WIDE),
    ({}, {"stages": 4}),
    ({"block": 64}, _WIDE),
    ({"block": 64}, {"stages": 4}),
    (_NARROW, _WIDE),
    (_NARROW, {**_WIDE, **_NARROW}),
    (_NARROW, {"block": 64, "stages": 5}),
    ({"columns": 32, "stages": 4}, {"stages": 4}),
)
_TALL: Final[Config] = {"mixed": True, "stages": 4}
_TILED: Final[tuple[tuple[Config, Config], ...]] = (
    (_TALL, {**_TALL, "columns": 256}),
    (_TALL, {"columns": 256, "persistent": True, "stages": 4}),
    ({**_TALL, "group": 16}, {**_TALL, "columns": 256}),
    ({**_TALL, "group": 16}, {"columns": 256, "persistent": True, "stages": 4}),
    ({**_TALL, "align": 128}, {"align": 128, "columns": 256, "persistent": True, "stages": 4}),
    ({"align": 128}, {"align": 128, "columns": 256, "persistent": True, "stages": 4}),
    ({"rows": 64, "warps": 4}, {"rows": 64, "columns": 256, "warps": 4}),
)
_IN_GLUON: Final[tuple[tuple[Config, Config], ...]] = (
    ({}, {}),
    ({}, {"columns": 128, "stages": 6}),
    ({"lead": 1}, {"lead": 1}),
    ({"group": 16}, {"group": 16}),
)


class Tuned(Protocol):
    """The fastest configuration for a number of tokens."""

    @property
    def tokens(self) -> int:
        """Rows of the call that was measured."""

    @property
    def config(self) -> Config:
        """One of :func:`configs_of`."""

    @property
    def microseconds(self) -> float:
        """Its time."""


def configs_of(paths: Sequence[str], shape: Shape, tokens: int) -> list[dict[str, Any]]:
    """Every path that may be the fastest of `paths`, with the tiles to try."""
    mean = tokens * shape.top_k / shape.experts
    paths = [path for path in paths if path in paths_of(shape)]
    fitting = [
        path for path in paths if (tokens <= MOST_UNSORTED if path == NO_SORT else path == SWAP_AB or mean >= TALL)
    ]
    fitting = fitting or paths
    times = {path: predicted(path, shape, tokens, MULTIPROCESSORS) for path in fitting}
    hopeful = [path for path, time in times.items() if time <= HOPELESS * min(times.values())]
    return [{"path": path, "config": config} for path in hopeful for config in _tiles(path, shape, tokens)]


def table_of(machine: Machine, shape: Shape, tuned: Sequence[tuple[int, Tuned]], existing: Any) -> dict[str, Any]:
    """The parsed table `existing`, or an empty one, with `tuned` (tokens that reach the experts, and what was found).

    Raises ``ValueError`` when `existing` is no table, or one of another device or version of Triton.
    """
    table = Table(machine.device, machine.triton, ()) if existing is None else Table.of(existing)
    if (table.device, table.triton) != (machine.device, machine.triton):
        raise ValueError(
            f"the table is of {table.device} and triton {table.triton}, and this is {machine.device} with triton "
            f"{machine.triton}; give another file"
        )
    rows = [
        Entry(shape, tokens, row.config["path"], row.config["config"], round(row.microseconds, 2))
        for tokens, row in tuned
    ]
    return table.merged(rows).as_json()


def _tiles(path: str, shape: Shape, tokens: int) -> Iterator[dict[str, Any]]:
    if shape.kernels != PLAIN:
        yield from quantized_tiles(path, shape, tokens)
    elif path == NO_SORT:
        yield from map(dict, _UNSORTED)
    elif path == SWAP_AB:
        for rows in _heights(shape, tokens):
            for up, down in _SWAPPED:
                yield {"up": {"rows": rows, **up}, "down": {"rows": rows, **down}}
    else:
        for up, down in {GROUPED: _TILED, GLUON: _IN_GLUON}[path]:
            yield {"up": dict(up), "down": dict(down)}


def _heights(shape: Shape, tokens: int) -> list[int]:
    """Tiles that hold an expert's mean number of rows and, if that is not far below, the next height: few tiles are
    cut in two."""
    mean = tokens * shape.top_k / shape.experts
    fitting = [rows for rows in (16, 32, 64) if rows >= mean]
    return (fitting[:1] if mean <= 4 else fitting[:2]) or [64]
