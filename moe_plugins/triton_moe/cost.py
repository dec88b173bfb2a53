"""Microseconds that a path should take: bytes over bandwidth, operations over rate, and what each launch adds.

The formulas are those of a roofline with padding: a path takes about the longer of its memory time and its arithmetic
time. The constants were fitted to an H200 and scale with the number of multiprocessors elsewhere. Uniform routing.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from moe_plugins.triton_moe.formats import FORMATS, FP8, NONE, QUADS

BYTES: Final = 2
"""Of an element of activations."""
READ: Final = 4.2e6
"""Bytes a microsecond from memory."""
CACHE: Final = 6.5e6
"""Bytes a microsecond from the second-level cache."""
MULTIPROCESSORS: Final = 132
"""Of the device that the constants were fitted to."""
SHARPNESS: Final = 4
"""How closely memory and arithmetic overlap: the exponent of the norm that stands for the longer of the two."""


class Shape(NamedTuple):
    """One rank's experts in one layer."""

    dtype: str
    experts: int
    """On this rank."""
    top_k: int
    hidden: int
    inner: int
    """Intermediate size on this rank."""
    gated: bool
    format: str = NONE
    """Of the weights, a name in :data:`~moe_plugins.triton_moe.formats.FORMATS`."""

    @property
    def kernels(self) -> str:
        """Those that read the format."""
        return FORMATS[self.format].kernels

    @property
    def halves(self) -> int:
        """Matrices of FC1: gate and up, or one."""
        return 2 if self.gated else 1

    @property
    def weights(self) -> int:
        """Elements of one expert's matrices."""
        return (self.halves + 1) * self.hidden * self.inner

    @property
    def weight_bytes(self) -> float:
        """Of one expert's matrices."""
        return self.weights * FORMATS[self.format].bits / 8

    def used(self, tokens: int) -> float:
        """Experts that `tokens` are expected to reach."""
        return self.experts * (1 - (1 - min(self.top_k / self.experts, 1)) ** tokens)

    def tiles(self, tokens: int, rows: int) -> float:
        """Row tiles that `tokens` are expected to fill, each of one expert and at most `rows` high."""
        share = min(self.top_k / self.experts, 1)
        mean = tokens * share
        spread = math.sqrt(2 * mean * (1 - share)) or 1e-9
        # Each expert has a tile for its first row, one for row rows + 1 and so on; the tail is that of a normal.
        last = int((mean + 4 * spread) / rows) + 1
        further = sum(
            0.5 * math.erfc((j * rows + 0.5 - mean) / spread) for j in range(1, min(last, tokens // rows) + 1)
        )
        return self.used(tokens) + self.experts * further


class Rates(NamedTuple):
    """What the kernels of a path reach."""

    operations: float
    """A microsecond, on whole tiles."""
    fixed: float
    """Microseconds of ramps, map and gaps."""


def no_sort(shape: Shape, tokens: int, rates: Rates, multiprocessors: int = MULTIPROCESSORS) -> float:
    """Every pair reads its expert's matrices; what was read for another pair comes from the cache."""
    pairs = tokens * shape.top_k
    unique = shape.used(tokens) * shape.weight_bytes
    again = pairs * shape.weight_bytes - unique
    memory = unique / READ + again / CACHE
    arithmetic = 2 * pairs * shape.weights / (rates.operations * multiprocessors / MULTIPROCESSORS)
    return _longer(memory, arithmetic) + rates.fixed


def tiled(shape: Shape, tokens: int, rows: int, rates: Rates, multiprocessors: int = MULTIPROCESSORS) -> float:
    """Two products over tiles of `rows` rows, whose rows are summed by a kernel of their own."""
    pairs, tiles = tokens * shape.top_k, shape.tiles(tokens, rows)
    weights = max(shape.used(tokens) / READ, tiles / CACHE) * shape.weight_bytes
    # Tokens and the activations between the products, written and read; the rows that are summed, likewise.
    between = {FP8: 1, QUADS: BYTES + 1}.get(shape.kernels, BYTES)
    passed = (2 * (tokens + pairs) * shape.hidden * BYTES + 2 * pairs * shape.inner * between) / READ
    arithmetic = 2 * tiles * rows * shape.weights / (rates.operations * multiprocessors / MULTIPROCESSORS)
    return _longer(weights, arithmetic) + passed + rates.fixed + _scan(pairs)


def _longer(memory: float, arithmetic: float) -> float:
    return float((memory**SHARPNESS + arithmetic**SHARPNESS) ** (1 / SHARPNESS))


def _scan(pairs: int) -> float:
    """The map's own time: every program reads every pair, or its block of them."""
    return min(pairs / 2000, 3.0)
