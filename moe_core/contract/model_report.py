"""The outcome for a whole model: one report per distinct question, with the layers that share it."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from moe_core.contract.base import SCHEMA_VERSION, Frozen
from moe_core.contract.report import MoEResolutionReport
from moe_core.contract.vocabulary import LayerRole


class LayerReport(Frozen):
    """A report with the layers that it is for, by index in the model (draft layers: in the draft module)."""

    role: LayerRole
    layers: tuple[int, ...]
    report: MoEResolutionReport


class MoEModelReport(Frozen):
    """Reports of every MoE layer of a model, equal questions together."""

    schema_version: Literal[1] = SCHEMA_VERSION
    model: str = ""
    layers: tuple[LayerReport, ...]
    weight_bytes: int | None
    """Bytes of all routed experts on the fullest rank; ``None`` when a size is unknown."""

    @property
    def ok(self) -> bool:
        """Whether every layer has its winners."""
        return all(group.report.ok for group in self.layers)

    @property
    def winners(self) -> tuple[tuple[str | None, str | None, int], ...]:
        """(backend, communication, number of layers) of each distinct outcome, most layers first."""
        count: Counter[tuple[str | None, str | None]] = Counter()
        for group in self.layers:
            report = group.report
            count[(report.backend.winner, report.communication.winner)] += len(group.layers)
        return tuple((backend, exchange, n) for (backend, exchange), n in count.most_common())
