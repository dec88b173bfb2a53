"""Plan one forward from the report and every rank's token count. Pure, so equal on all ranks."""

from __future__ import annotations

from collections.abc import Sequence

from moe_core.contract.decision import Degradation, RankedCandidate
from moe_core.contract.plan import ChunkPlan, ForwardPlan, QuantizeOrder
from moe_core.contract.report import MoEResolutionReport
from moe_core.contract.vocabulary import CandidateKind, SchedulerKind
from moe_core.resolve.pair import GATHER


class InfeasibleWorkloadError(RuntimeError):
    """The selected strategy cannot serve these tokens, and stepping down is not allowed or not possible."""


def plan_forward(report: MoEResolutionReport, all_rank_num_tokens: Sequence[int]) -> ForwardPlan:
    """Chunks, padding and strategy for a forward in which rank ``i`` brings ``all_rank_num_tokens[i]`` tokens.

    Without attention data parallelism every rank sees the same tokens, and one count is enough.

    Raises:
        UnresolvedError: the report has no winner.
        ValueError: the counts do not fit the deployment.
        InfeasibleWorkloadError: no allowed strategy serves the workload. Raised alike on every rank.
    """
    counts = _checked(report, all_rank_num_tokens)
    most = max(counts)
    backend = report.winner(CandidateKind.BACKEND, most or None)
    if backend.scheduler_kind is SchedulerKind.FUSED_COMM:
        return _fused(report, backend, counts)
    return _external(report, backend, counts)


def _checked(report: MoEResolutionReport, given: Sequence[int]) -> tuple[int, ...]:
    counts, deployment = tuple(given), report.deployment
    ranks = deployment.world_size if deployment.use_dp else 1
    if not deployment.use_dp and len(set(counts)) == 1:
        counts = counts[:1]
    if len(counts) != ranks:
        raise ValueError(
            f"{len(counts)} token counts were given, {ranks} are needed: "
            + ("one per rank" if deployment.use_dp else "without attention data parallelism every rank has the same")
        )
    if any(count < 0 for count in counts):
        raise ValueError(f"token counts must be >= 0, got {', '.join(map(str, counts))}")
    limit = deployment.max_num_tokens
    if limit is not None and max(counts) > limit:
        raise ValueError(f"a rank brings {max(counts)} tokens, more than the deployment's max_num_tokens {limit}")
    return counts


def _fused(report: MoEResolutionReport, backend: RankedCandidate, counts: tuple[int, ...]) -> ForwardPlan:
    # Ranks without rows launch the kernel with none: its exchange needs every rank in every chunk.
    num_chunks = _num_chunks(max(counts), report.deployment.moe_max_num_tokens)
    pieces = [_split(count, num_chunks) for count in counts]
    chunks = [ChunkPlan(sizes=sizes, kept=(True,) * len(counts)) for sizes in zip(*pieces, strict=True)]
    return ForwardPlan(
        scheduler_kind=SchedulerKind.FUSED_COMM, backend=backend.identity, communication=None, num_tokens=counts,
        padded_tokens=counts, chunks=tuple(chunks) if max(counts) else (), quantize=QuantizeOrder.LOCAL,
    )  # fmt: skip


def _external(report: MoEResolutionReport, backend: RankedCandidate, counts: tuple[int, ...]) -> ForwardPlan:
    deployment, most = report.deployment, max(counts)
    use_dp = deployment.use_dp
    num_chunks = _num_chunks(most * len(counts), deployment.moe_max_num_tokens)
    chosen = report.winner(CandidateKind.COMMUNICATION, most or None)
    strategy, degradations = _feasible(report, chosen, most, num_chunks)
    # A quantize kernel on zero rows may never reach the collective: short ranks bring zero rows instead.
    padded = (most,) * len(counts) if use_dp and most > 0 and 0 in counts else counts
    limits = strategy.exchange
    return ForwardPlan(
        scheduler_kind=SchedulerKind.EXTERNAL_COMM,
        backend=backend.identity,
        communication=strategy.identity,
        num_tokens=counts,
        padded_tokens=padded,
        chunks=_chunks(padded, num_chunks, at_least_one=bool(use_dp and limits and limits.all_to_all)) if most else (),
        quantize=_order(use_dp, limits is None or limits.quantize_before_dispatch),
        degradations=degradations,
    )


def _order(use_dp: bool, before: bool) -> QuantizeOrder:
    if not use_dp:
        return QuantizeOrder.LOCAL
    return QuantizeOrder.BEFORE_DISPATCH if before else QuantizeOrder.AFTER_DISPATCH


def _num_chunks(rows: int, limit: int | None) -> int:
    return 1 if limit is None else max(1, -(-rows // limit))


def _split(count: int, pieces: int) -> tuple[int, ...]:
    """Even split; the first pieces get one more: 7 into 3 is ``(3, 2, 2)``."""
    base, rest = divmod(count, pieces)
    return tuple(base + (piece < rest) for piece in range(pieces))


def _chunks(padded: tuple[int, ...], num_chunks: int, *, at_least_one: bool) -> tuple[ChunkPlan, ...]:
    pieces = [_split(count, num_chunks) for count in padded]
    chunks = []
    for true_sizes in zip(*pieces, strict=True):
        # A rank whose piece is empty repeats its first chunk, so that it is there for every collective.
        sizes = tuple(size or first[0] for size, first in zip(true_sizes, pieces, strict=True))
        if at_least_one:
            sizes = tuple(size or 1 for size in sizes)
        kept = tuple(size > 0 for size in true_sizes)
        chunks.append(ChunkPlan(sizes=sizes, kept=kept))
    return tuple(chunks)


def _feasible(
    report: MoEResolutionReport, chosen: RankedCandidate, most: int, num_chunks: int
) -> tuple[RankedCandidate, tuple[Degradation, ...]]:
    why = _unfit(chosen, most, num_chunks)
    if why is None:
        return chosen, ()
    decision = report.decision(CandidateKind.COMMUNICATION, most or None)
    fallback = next((c for c in decision.eligible if c.family == GATHER), None)
    pinned = decision.requested == chosen.identity
    if fallback is None or pinned or not report.request.allow_degradation:
        raise InfeasibleWorkloadError(
            f"{chosen.identity} cannot serve this forward: {why}; "
            + (
                "no all-gather strategy is eligible here"
                if fallback is None
                else "it is pinned"
                if pinned
                else "degradation is not allowed"
            )
            + "; bring fewer tokens per forward, or raise the limit"
        )
    step = Degradation(
        kind=CandidateKind.COMMUNICATION, source=chosen.identity, target=fallback.identity, reason=why,
        hint="for this workload only; bring fewer tokens per forward, or raise the limit",
    )  # fmt: skip
    return fallback, (step,)


def _unfit(strategy: RankedCandidate, most: int, num_chunks: int) -> str | None:
    limits = strategy.exchange
    if limits is None:
        return None
    if limits.max_chunks is not None and num_chunks > limits.max_chunks:
        return f"the forward has {num_chunks} chunks, and it serves at most {limits.max_chunks}"
    if limits.max_tokens is not None and most > limits.max_tokens:
        return f"a rank brings {most} tokens, and its buffers hold {limits.max_tokens}"
    return None
