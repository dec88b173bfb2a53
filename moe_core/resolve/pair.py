"""Which backends and communication strategies fit together, and how well a pair answers the request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.eligibility import Rejection
from moe_core.contract.reasons import MoERejectReason
from moe_core.contract.vocabulary import RoutingSplit, SchedulerKind
from moe_core.resolve.selector import Selector

NO_EXCHANGE = "NONE"
"""Family of the declared outcome that no tokens are exchanged."""
GATHER = "ALLGATHER"
"""Family of the strategy that every workload can fall back to."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A backend with the strategy that would serve it; ``None`` when it exchanges tokens itself."""

    backend: MoECandidate
    communication: MoECandidate | None
    tier: int
    """0: both as requested; 1: the strategy is not; 2: the backend is not; 3: neither is."""

    @property
    def steps_down_backend(self) -> bool:
        """Whether the backend is not what was requested."""
        return self.tier >= 2

    @property
    def steps_down_communication(self) -> bool:
        """Whether the strategy is not what was requested."""
        return self.tier % 2 == 1


@lru_cache(maxsize=4096)
def mismatch(backend: MoECandidate, communication: MoECandidate) -> Rejection | None:
    """Why `backend` cannot be served by `communication`; ``None`` when it can."""
    if backend.scheduler_kind is SchedulerKind.FUSED_COMM:
        return _format(
            "scheduler_kind",
            backend.scheduler_kind,
            "EXTERNAL_COMM",
            f"{backend.identity} exchanges tokens inside its kernel",
        )
    if communication.family == NO_EXCHANGE:
        return None
    if not set(backend.layouts) & set(communication.layouts):
        return _format(
            "layouts",
            tuple(communication.layouts),
            " or ".join(backend.layouts),
            f"{communication.identity} delivers rows that {backend.identity} does not take",
        )
    if backend.routing_split is RoutingSplit.IN_KERNEL:
        return _format(
            "routing_split",
            backend.routing_split,
            "separated or either",
            f"{backend.identity} routes inside its kernel, and {communication.identity} delivers routed tokens",
        )
    return None


def best_pair(
    backend: MoECandidate, ranked: Sequence[MoECandidate], requested: Selector, in_request: bool
) -> Pair | None:
    """The best pair of `backend` with one of the `ranked` strategies; ``None`` without a partner."""
    tier = 0 if in_request else 2
    if backend.scheduler_kind is SchedulerKind.FUSED_COMM:
        return Pair(backend, None, tier if requested.is_auto else tier + 1)
    fitting = [c for c in ranked if mismatch(backend, c) is None]
    if not fitting:
        return None
    wanted = next((c for c in fitting if c in requested), None)
    return Pair(backend, wanted or fitting[0], tier if wanted else tier + 1)


def no_partner(backend: MoECandidate, ranked: Sequence[MoECandidate], fitting: Sequence[str] = ()) -> Rejection:
    """The rejection of a backend that none of `ranked` can serve; `fitting` are backends that they can."""
    for communication in ranked:
        found = mismatch(backend, communication)
        if found is not None:
            hint = f"{found.hint}; backends that fit: {', '.join(fitting)}" if fitting else found.hint
            return found.evolve(hint=hint)
    return _format("communication", None, "an eligible communication strategy", "see the communication decision")


def _format(fact: str, found: str | tuple[str, ...] | None, needed: str, hint: str) -> Rejection:
    return Rejection.of(MoERejectReason.FORMAT_INCOMPATIBLE, fact=fact, found=found, needed=needed, hint=hint)
