"""The distinct outcomes of a model's report: which layers, at which token counts, got the same answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from moe_core.contract.decision import Decision
from moe_core.contract.model_report import LayerReport, MoEModelReport
from moe_core.contract.report import MoEResolutionReport
from moe_core.contract.vocabulary import CandidateKind, LayerRole
from moe_core.explain.phrases import counted, ranges


@dataclass(frozen=True, slots=True)
class Outcome:
    """One answer: the layers and token buckets that share it."""

    groups: tuple[LayerReport, ...]
    more_than: int
    """Tokens per rank above which the answer holds."""
    most_tokens: int | None
    """Tokens per rank up to which it holds; ``None``: any."""
    report: MoEResolutionReport
    decisions: tuple[Decision, ...]

    def decision(self, kind: CandidateKind) -> Decision | None:
        """The decision of a kind; ``None`` when no plugin offers the kind."""
        return next((d for d in self.decisions if d.kind is kind), None)

    @property
    def layers(self) -> str:
        """``3-60``, ``3-60 and draft 0``; empty when a single layer was resolved on its own."""
        named = [
            ("draft " if role is LayerRole.DRAFT else "")
            + ranges(i for g in self.groups if g.role is role for i in g.layers)
            for role in LayerRole
            if any(g.role is role and g.layers for g in self.groups)
        ]
        return " and ".join(named)

    @property
    def tokens(self) -> str:
        """``up to 64 tokens``, ``65 to 4096 tokens``; empty when the answer is for any number."""
        if self.most_tokens is None:
            return ""
        first = "up to" if self.more_than == 0 else f"{self.more_than + 1} to"
        return f"{first} {counted(self.most_tokens, 'token')}"

    @property
    def scope(self) -> str:
        """Layers and tokens."""
        return ", ".join(part for part in (f"layers {self.layers}" if self.layers else "", self.tokens) if part)


def alone(report: MoEResolutionReport) -> MoEModelReport:
    """The report of a single layer, as that of a model whose layers have no numbers."""
    group = LayerReport(role=LayerRole.TARGET, layers=(), report=report)
    return MoEModelReport(layers=(group,), weight_bytes=report.memory.weights)


def outcomes(model: MoEModelReport) -> tuple[Outcome, ...]:
    """Every distinct outcome, in order of layers and token buckets."""
    of_report: dict[MoEResolutionReport, list[LayerReport]] = {}
    for group in model.layers:
        of_report.setdefault(group.report, []).append(group)
    return tuple(outcome for report, groups in of_report.items() for outcome in _by_bucket(report, tuple(groups)))


def _by_bucket(report: MoEResolutionReport, groups: tuple[LayerReport, ...]) -> Iterator[Outcome]:
    """Token buckets in order; neighbours with one answer are one range."""
    last = 0
    for _, same in groupby(report.token_buckets, key=lambda bucket: _regardless(report, bucket)):
        bucket = list(same)[-1]
        decisions = tuple(d for d in report.decisions if d.token_bucket == bucket)
        yield Outcome(groups, last, bucket, report, decisions)
        last = bucket or 0


def _regardless(report: MoEResolutionReport, bucket: int | None) -> tuple[Decision, ...]:
    return tuple(d.evolve(token_bucket=None) for d in report.decisions if d.token_bucket == bucket)


def failures(decisions: Sequence[Decision]) -> tuple[Decision, ...]:
    """The decisions to blame where there is no winner.

    Those with nothing eligible; if every kind has something, those with nothing that was asked for.
    """
    undecided = [d for d in decisions if not d.settled]
    empty = [d for d in undecided if not d.eligible]
    unserved = [d for d in undecided if not any(c.in_request for c in d.eligible)]
    # Else each side has what was asked for, and no two of them fit together.
    return tuple(empty or unserved or [d for d in undecided if d.kind is CandidateKind.BACKEND])
