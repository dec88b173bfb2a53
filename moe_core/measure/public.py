"""Figures that others published, or that were measured of others' kernels elsewhere: data beside a bench. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from moe_core.contract.base import Frozen
from moe_core.contract.vocabulary import QuantAlgo
from moe_core.measure.floor import Positive
from moe_core.measure.shapes import Shape

_LABELS: Mapping[QuantAlgo, str] = MappingProxyType(
    {
        QuantAlgo.NONE: "bf16",
        QuantAlgo.FP8_BLOCK_SCALES: "fp8 block 128x128",
        QuantAlgo.FP8: "fp8 per tensor",
        QuantAlgo.W4A16_MXFP4: "mxfp4",
        QuantAlgo.W4A16_AWQ: "int4",
        QuantAlgo.W4A16_GPTQ: "int4",
        QuantAlgo.W4A16: "int4",
    }
)


class PublicFigure(Frozen):
    """The fastest kernel of a cell, and its time."""

    shape: str
    tokens: int
    format: str
    """Of weights: ``bf16``, ``fp8 block 128x128``, ``fp8 per tensor``, ``mxfp4``, ``int4``."""
    kernel: str
    microseconds: Positive


Beside: TypeAlias = Mapping[tuple[str, int], PublicFigure]
"""The fastest figure for the name of a shape and a number of tokens."""


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

    def beside(self, shapes: Iterable[Shape]) -> Beside:
        """The fastest figures of `shapes`, each in its own format."""
        counts = sorted({f.tokens for f in self.figures})
        return {
            (shape.name, tokens): figure
            for shape in shapes
            if (label := _LABELS.get(shape.problem.quant or QuantAlgo.NONE)) is not None
            for tokens in counts
            if (figure := self.best(shape.model or shape.name, tokens, label)) is not None
        }
