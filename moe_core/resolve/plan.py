"""Plan one forward from the report and every rank's token count. Pure, so equal on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from moe_core.contract.decision import Decision, Degradation, RankedCandidate
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.plan import ChunkPlan, FinalizeOrder, ForwardPlan, QuantizeOrder
from moe_core.contract.report import MoEResolutionReport
from moe_core.contract.vocabulary import CandidateKind, SchedulerKind
from moe_core.resolve.pair import GATHER, NO_EXCHANGE


class InfeasibleWorkloadError(RuntimeError):
    """The selected strategy cannot serve these tokens, and stepping down is not allowed or not possible."""


def plan_forward(
    report: MoEResolutionReport, all_rank_num_tokens: Sequence[int], *, use_dp_padding: bool = False
) -> ForwardPlan:
    """Chunks, padding and strategy for a forward in which rank ``i`` brings ``all_rank_num_tokens[i]`` tokens.

    Without attention data parallelism every rank sees the same tokens, and one count is enough. With `use_dp_padding`
    every rank brings as many rows as the fullest one; a backend that exchanges tokens itself leaves the surplus out.

    Raises:
        UnresolvedError: the report has no winner.
        ValueError: the counts do not fit the deployment.
        InfeasibleWorkloadError: no allowed strategy serves the workload. Raised alike on every rank.
    """
    return _plan(report, tuple(all_rank_num_tokens), use_dp_padding)


def strategies_of(report: MoEResolutionReport) -> tuple[str, ...]:
    """Identities of all strategies that a plan of `report` may name, in a fixed order."""
    found: dict[str, None] = {}
    for decision in report.decisions:
        if decision.kind is CandidateKind.COMMUNICATION and (chosen := decision.winning) is not None:
            found[chosen.identity] = None
            fallback = _fallback(report, decision)
            if fallback is not None and _has_limits(chosen):
                found[fallback.identity] = None
    return tuple(found)


# Every layer of a model asks the same in a step, and decoding asks the same step after step.
@lru_cache(maxsize=4096)
def _plan(report: MoEResolutionReport, given: tuple[int, ...], use_dp_padding: bool) -> ForwardPlan:
    counts = _checked(report.deployment, given)
    backend = report.winner(CandidateKind.BACKEND, max(counts) or None)
    if backend.scheduler_kind is SchedulerKind.FUSED_COMM:
        return _fused(report, backend, counts, use_dp_padding)
    return _external(report, backend, counts, use_dp_padding)


def _checked(deployment: MoEDeployment, counts: tuple[int, ...]) -> tuple[int, ...]:
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


def _fused(
    report: MoEResolutionReport, backend: RankedCandidate, counts: tuple[int, ...], use_dp_padding: bool
) -> ForwardPlan:
    # Ranks without rows launch the kernel with none: its exchange needs every rank in every chunk.
    num_chunks = _num_chunks(max(counts), report.deployment.moe_max_num_tokens)
    pieces = [_split(count, num_chunks) for count in counts]
    chunks = [ChunkPlan(sizes=sizes, kept=(True,) * len(counts)) for sizes in zip(*pieces, strict=True)]
    return ForwardPlan(
        scheduler_kind=SchedulerKind.FUSED_COMM, backend=backend.identity, communication=None, num_tokens=counts,
        padded_tokens=(max(counts),) * len(counts) if use_dp_padding else counts,
        chunks=tuple(chunks) if max(counts) else (), quantize=QuantizeOrder.LOCAL,
    )  # fmt: skip


def _external(
    report: MoEResolutionReport, backend: RankedCandidate, counts: tuple[int, ...], use_dp_padding: bool
) -> ForwardPlan:
    most = max(counts)
    decision = report.decision(CandidateKind.COMMUNICATION, most or None)
    chosen = report.winner(CandidateKind.COMMUNICATION, most or None)
    exchanges = chosen.family != NO_EXCHANGE
    num_chunks = _num_chunks(most * len(counts) if exchanges else most, report.deployment.moe_max_num_tokens)
    strategy, degradations = _feasible(report, decision, chosen, most, num_chunks)
    limits = strategy.exchange
    # A quantize kernel on zero rows may never reach the collective: short ranks bring zero rows instead.
    pads = most > 0 and (use_dp_padding or (exchanges and 0 in counts))
    padded = (most,) * len(counts) if pads else counts
    return ForwardPlan(
        scheduler_kind=SchedulerKind.EXTERNAL_COMM,
        backend=backend.identity,
        communication=strategy.identity,
        num_tokens=counts,
        padded_tokens=padded,
        chunks=_chunks(padded, num_chunks, repeat=exchanges) if most else (),
        quantize=_order(exchanges, limits is None or limits.quantize_before_dispatch),
        finalize=FinalizeOrder.EXPERTS if limits is None or limits.finalize_before_combine else FinalizeOrder.COMBINE,
        may_overlap=num_chunks > 1 and not (limits is not None and limits.all_to_all),
        degradations=degradations,
    )


def _order(exchanges: bool, before: bool) -> QuantizeOrder:
    if not exchanges:
        return QuantizeOrder.LOCAL
    return QuantizeOrder.BEFORE_DISPATCH if before else QuantizeOrder.AFTER_DISPATCH


def _num_chunks(rows: int, limit: int | None) -> int:
    return 1 if limit is None else max(1, -(-rows // limit))


def _split(count: int, pieces: int) -> tuple[int, ...]:
    """Even split; the first pieces get one more: 7 into 3 is ``(3, 2, 2)``."""
    base, rest = divmod(count, pieces)
    return tuple(base + (piece < rest) for piece in range(pieces))


def _chunks(padded: tuple[int, ...], num_chunks: int, *, repeat: bool) -> tuple[ChunkPlan, ...]:
    pieces = [_split(count, num_chunks) for count in padded]
    chunks = []
    for true_sizes in zip(*pieces, strict=True):
        sizes = true_sizes
        if repeat:
            # A rank whose piece is empty repeats its first chunk, so that it is there for every collective.
            sizes = tuple(size or first[0] for size, first in zip(true_sizes, pieces, strict=True))
        chunks.append(ChunkPlan(sizes=sizes, kept=tuple(size > 0 for size in true_sizes)))
    return tuple(chunks)


def _fallback(report: MoEResolutionReport, decision: Decision) -> RankedCandidate | None:
    """What serves workloads that the winner cannot; ``None``: nothing may, or nothing can."""
    if decision.requested == decision.winner or not report.request.allow_degradation:
        return None
    return next((c for c in decision.eligible if c.family == GATHER), None)


def _feasible(
    report: MoEResolutionReport, decision: Decision, chosen: RankedCandidate, most: int, num_chunks: int
) -> tuple[RankedCandidate, tuple[Degradation, ...]]:
    # Buffers hold one chunk at a time; the first piece of the fullest rank is the largest.
    unfit = _unfit(chosen, -(-most // num_chunks), num_chunks)
    if unfit is None:
        return chosen, ()
    fallback = _fallback(report, decision)
    if fallback is None:
        pinned = decision.requested == decision.winner
        forbidden = "it is pinned" if pinned else "degradation is not allowed"
        none = pinned or not report.request.allow_degradation
        raise InfeasibleWorkloadError(
            f"{chosen.identity} cannot serve this forward: {unfit.cause}; found {unfit.found}; "
            f"{forbidden if none else 'no all-gather strategy is eligible here'}; {unfit.hint}"
        )
    # Without the numbers of this workload: the same cause is one degradation, however often it comes.
    step = Degradation(
        kind=CandidateKind.COMMUNICATION, source=chosen.identity, target=fallback.identity, reason=unfit.cause,
        hint=f"for such workloads only; {unfit.hint}",
    )  # fmt: skip
    return fallback, (step,)


class _Unfit(NamedTuple):
    cause: str
    found: int
    hint: str


def _has_limits(strategy: RankedCandidate) -> bool:
    limits = strategy.exchange
    return limits is not None and (limits.max_chunks, limits.max_tokens) != (None, None)


def _unfit(strategy: RankedCandidate, rows: int, num_chunks: int) -> _Unfit | None:
    limits = strategy.exchange
    if limits is None:
        return None
    if limits.max_chunks is not None and num_chunks > limits.max_chunks:
        return _Unfit(
            f"it serves forwards of at most {limits.max_chunks} chunk(s)",
            num_chunks,
            "bring fewer tokens per forward, or raise moe_max_num_tokens",
        )
    if limits.max_tokens is not None and rows > limits.max_tokens:
        return _Unfit(
            f"its buffers hold {limits.max_tokens} tokens per rank",
            rows,
            "bring fewer tokens per forward, or raise max_dispatch_tokens",
        )
    return None
