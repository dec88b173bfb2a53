"""One choice of the resolver: the winner, who else could, who could not and why."""

from __future__ import annotations

from moe_core.contract.base import Frozen
from moe_core.contract.eligibility import Adjustment, Assumption, Rejection
from moe_core.contract.reasons import MoERejectReason
from moe_core.contract.tuning import Tuning
from moe_core.contract.vocabulary import CandidateKind, RequestedBy, SchedulerKind, SelectedBy


class ExchangeLimits(Frozen):
    """What a strategy serves in one forward of this problem; ``None``: no limit."""

    max_chunks: int | None
    max_tokens: int | None
    """Per rank."""
    quantize_before_dispatch: bool
    finalize_before_combine: bool = True
    all_to_all: bool


class RankedCandidate(Frozen):
    """An eligible candidate at its place in the order."""

    identity: str
    family: str
    priority: int
    scheduler_kind: SchedulerKind
    in_request: bool
    """Whether it is what was asked for; otherwise it is an alternative."""
    microseconds: float | None = None
    """Measured time, where there is evidence for it."""
    tuning: Tuning | None = None
    """Backend: what its plugin expects, where it can say."""
    exchange: ExchangeLimits | None = None
    """Strategy: what it serves in a forward."""
    partner: str | None = None
    """Backend: the best communication strategy that it can be paired with."""
    assumptions: tuple[Assumption, ...] = ()
    adjustments: tuple[Adjustment, ...] = ()


class RejectedCandidate(Frozen):
    """A refused candidate with every reason."""

    identity: str
    family: str
    priority: int
    rejections: tuple[Rejection, ...]


class PluginError(Frozen):
    """A plugin that no candidate came of: it could not be loaded, broke the contract, or is banned unloaded."""

    plugin: str
    distribution: str | None = None
    reason: MoERejectReason = MoERejectReason.PLUGIN_ERROR
    error: str
    """Type and first line of the message; no paths, no addresses."""


class Degradation(Frozen):
    """A step down: from what, to what, why, and what would change it."""

    kind: CandidateKind
    source: str
    target: str
    reason: str
    hint: str = ""


class Decision(Frozen):
    """One choice, keyed by kind and token bucket."""

    kind: CandidateKind
    token_bucket: int | None = None
    """Upper token count per rank that the choice is for; ``None``: any."""
    requested: str
    requested_by: RequestedBy
    selected_by: SelectedBy
    winner: str | None
    eligible: tuple[RankedCandidate, ...]
    rejected: tuple[RejectedCandidate, ...]
    notes: tuple[str, ...] = ()
    """How evidence was used, or why it was not."""

    @property
    def settled(self) -> bool:
        """Whether there is a winner, or none is needed: backend or model does it by itself."""
        return self.winner is not None or self.selected_by in (SelectedBy.FUSED, SelectedBy.MODEL)

    @property
    def winning(self) -> RankedCandidate | None:
        """The winner's row."""
        return next((c for c in self.eligible if c.identity == self.winner), None)

    @property
    def alternatives(self) -> tuple[RankedCandidate, ...]:
        """Eligible candidates other than the winner, best first."""
        return tuple(c for c in self.eligible if c.identity != self.winner)

    def rejections_of(self, identity: str) -> tuple[Rejection, ...]:
        """Reasons why `identity` was refused; empty when it was not."""
        return next((c.rejections for c in self.rejected if c.identity == identity), ())
