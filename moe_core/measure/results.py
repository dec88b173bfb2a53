"""What a bench found, as data: JSON there and back, for tables, plots and pages. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from moe_core.contract.base import SCHEMA_VERSION, Frozen
from moe_core.contract.environment import MoEEnvironment
from moe_core.measure.floor import Ceilings, Floor, Positive
from moe_core.measure.shapes import Shape


class Role(StrEnum):
    """What a row stands for."""

    CANDIDATE = "candidate"
    PEER = "peer"
    """What people use today; candidates are compared with the fastest that is right."""
    ORIENTATION = "orientation"
    """Quantized experts that were dequantized beforehand: shows what the format saves, and nothing is compared."""
    ROUTING = "routing"
    """From router logits to ids and weights."""
    LAYER = "layer"
    """From router logits to the experts' output."""


class Mode(StrEnum):
    """How a time was taken."""

    GRAPH = "graph"
    """Replays of a CUDA graph."""
    EAGER = "eager"
    """Calls from the host, waiting for the device after each round."""


class Timing(Frozen):
    """Microseconds of one call, over several rounds of calls with different inputs."""

    mode: Mode
    median: Positive
    p10: Positive
    p90: Positive
    rounds: Annotated[int, Field(gt=0)]
    calls: Annotated[int, Field(gt=0)]
    """Calls in a round, each with inputs of its own."""


class Row(Frozen):
    """One candidate or peer at one number of tokens."""

    name: str
    role: Role
    timing: Timing | None = None
    """The graph's where there is one. ``None``: it did not run, and `reason` says why."""
    eager: Timing | None = None
    """The host's time beside the graph's."""
    error: float | None = None
    """Relative Frobenius error against the float32 twin; ``None``: not compared, or not a number."""
    tolerance: float | None = None
    reason: str | None = None
    """Why there is no time, or no ratio."""

    @property
    def microseconds(self) -> float | None:
        """The time that counts."""
        return None if self.timing is None else self.timing.median

    @property
    def is_right(self) -> bool:
        """Whether the answer was compared and is within the tolerance."""
        return self.error is not None and self.tolerance is not None and self.error <= self.tolerance

    @property
    def verdict(self) -> str:
        """The error and what it may be."""
        found = "no number" if self.error is None else f"{self.error:.2g}"
        return f"error {found}, tolerance {'none declared' if self.tolerance is None else f'{self.tolerance:.2g}'}"

    @property
    def is_wrong(self) -> bool:
        """Whether it ran, and its answer is not within the tolerance."""
        return self.timing is not None and not self.is_right


class Cell(Frozen):
    """Everything that was measured for one shape at one number of tokens."""

    shape: str
    tokens: Annotated[int, Field(gt=0)]
    floor: Floor
    rows: tuple[Row, ...]

    def of_role(self, role: Role) -> tuple[Row, ...]:
        """The rows of a role, fastest first, those without a time last."""
        return tuple(sorted((r for r in self.rows if r.role is role), key=lambda r: r.microseconds or float("inf")))

    def best(self, role: Role) -> Row | None:
        """The fastest row of a role whose answer is right."""
        return next((row for row in self.of_role(role) if row.timing is not None and row.is_right), None)

    def share(self, row: Row) -> float | None:
        """The floor over the row's time: 1 is perfect. Only for experts alone."""
        if row.microseconds is None or row.role not in (Role.CANDIDATE, Role.PEER):
            return None
        return self.floor.microseconds / row.microseconds

    def ratio(self, row: Row) -> float | None:
        """The best peer's time over the row's: above 1, the row is faster. ``None`` where an answer is not right."""
        peer = self.best(Role.PEER)
        if row.role is not Role.CANDIDATE or not row.is_right or peer is None or not row.microseconds:
            return None
        return (peer.microseconds or 0.0) / row.microseconds


class Bench(Frozen):
    """A run of the bench: where, how, and what came of it."""

    schema_version: Literal[1] = SCHEMA_VERSION
    environment: MoEEnvironment
    """Machine and versions: torch, triton, driver and all packages that candidates ask for."""
    ceilings: Ceilings
    """What floors are computed with."""
    measured_ceilings: Ceilings | None = None
    """What this run itself reached."""
    routing: str
    """How ids were drawn: ``uniform`` or ``zipf``."""
    seed: int
    rest: Annotated[float, Field(ge=0)] = 0.0
    """Seconds that the device was left idle before each long replay."""
    shapes: tuple[Shape, ...]
    cells: tuple[Cell, ...] = ()

    def of_shape(self, name: str) -> tuple[Cell, ...]:
        """The cells of a shape, in order of tokens."""
        return tuple(sorted((c for c in self.cells if c.shape == name), key=lambda c: c.tokens))

    def wrong(self) -> Iterator[tuple[Cell, Row]]:
        """Rows whose answer is not within their tolerance."""
        return ((cell, row) for cell in self.cells for row in cell.rows if row.is_wrong)
