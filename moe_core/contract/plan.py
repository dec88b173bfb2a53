"""What one forward does on every rank: pure data, equal on all of them."""

from __future__ import annotations

from enum import StrEnum

from moe_core.contract.base import Frozen
from moe_core.contract.decision import Degradation
from moe_core.contract.vocabulary import SchedulerKind


class QuantizeOrder(StrEnum):
    """When activations are quantized."""

    LOCAL = "local"
    """No strategy moves rows: nothing is exchanged, or the backend's kernel does it."""
    BEFORE_DISPATCH = "before_dispatch"
    AFTER_DISPATCH = "after_dispatch"


class FinalizeOrder(StrEnum):
    """Who multiplies by the router weights and sums over a token's experts."""

    EXPERTS = "experts"
    """The backend, over its own experts; combine sums what the ranks return."""
    COMBINE = "combine"
    """Combine, over every expert of the token: the backend returns each row as it is."""


class ChunkPlan(Frozen):
    """One chunk: the rows that each rank brings to its collectives."""

    sizes: tuple[int, ...]
    kept: tuple[bool, ...]
    """Whether the rank keeps its output; a rank without rows repeats its first chunk and drops the result."""


class ForwardPlan(Frozen):
    """Chunks, padding and strategy of one forward. Token counts are per rank, in order of rank."""

    scheduler_kind: SchedulerKind
    backend: str
    communication: str | None
    """Strategy for this workload; ``None``: the backend exchanges tokens itself."""
    num_tokens: tuple[int, ...]
    """A single count when every rank has the same tokens."""
    padded_tokens: tuple[int, ...]
    """Rows with padding: what attention brings, or zero rows that are appended. A fused kernel sees none of it."""
    chunks: tuple[ChunkPlan, ...]
    """Empty when no rank has a token: every rank returns ``[0, H]`` without a collective."""
    quantize: QuantizeOrder
    finalize: FinalizeOrder = FinalizeOrder.EXPERTS
    may_overlap: bool = False
    """Whether a chunk may start before the one before it is through, on another stream."""
    degradations: tuple[Degradation, ...] = ()
    """Steps down that this workload forces; the strategy comes back for later workloads."""
