"""Figures that others published, or that were measured of others' kernels elsewhere: data beside a bench. No torch."""

from __future__ import annotations

from pathlib import Path

from moe_core.contract.base import Frozen
from moe_core.measure.floor import Positive


class PublicFigure(Frozen):
    """The fastest kernel of a cell, and its time."""

    shape: str
    tokens: int
    format: str
    """Of weights: ``bf16``, ``fp8 block 128x128``, ``mxfp4``."""
    kernel: str
    microseconds: Positive


class PublicFigures(Frozen):
    """Figures of one source."""

    source: str
    """Machine, versions and method, in words."""
    figures: tuple[PublicFigure, ...] = ()

    @classmethod
    def load(cls, path: str | Path) -> PublicFigures:
        """Read a file; raises ``ValueError`` when it holds something else."""
        return cls.from_json(Path(path).read_bytes())

    def best(self, shape: str, tokens: int, format_: str = "bf16") -> PublicFigure | None:
        """The fastest figure of a cell."""
        those = [f for f in self.figures if (f.shape, f.tokens, f.format) == (shape, tokens, format_)]
        return min(those, key=lambda f: f.microseconds, default=None)
