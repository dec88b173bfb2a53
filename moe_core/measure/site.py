"""Where something is measured and how, and who is asked to take part. Needs torch only for the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.catalog import Catalog
from moe_core.contract.decision import Decision, RejectedCandidate
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.problem import MoEProblem
from moe_core.contract.reasons import MoERejectReason
from moe_core.contract.request import MoERequest
from moe_core.contract.vocabulary import CandidateKind, CudaGraphMode, SchedulerKind
from moe_core.execution import TORCH_DTYPE, Binding, ParallelGroups
from moe_core.explain.document import plain
from moe_core.explain.phrases import reason
from moe_core.measure.timing import Budget
from moe_core.resolve import resolve_moe_impl
from moe_core.resolve.resolver import selectors_of


@dataclass(frozen=True)
class Site:
    """One rank's device, and everything that is equal for all that is measured there."""

    catalog: Catalog
    deployment: MoEDeployment
    device: torch.device
    request: MoERequest = field(default_factory=MoERequest)
    """Candidates outside of it are left out."""
    groups: ParallelGroups = field(default_factory=ParallelGroups)
    routing: str = "uniform"
    seed: int = 0
    budget: Budget = field(default_factory=Budget)

    def bind(self, candidate: MoECandidate, problem: MoEProblem, most_tokens: int) -> Binding:
        """What the factory of `candidate` is given, for up to `most_tokens` per rank."""
        assert problem.dtype_act is not None  # the problem's experts have been made in it
        return Binding(
            candidate=candidate,
            problem=problem,
            deployment=self.deployment.evolve(max_num_tokens=most_tokens),
            device=self.device,
            dtype=TORCH_DTYPE[problem.dtype_act],
            groups=self.groups,
        )

    def rows_of(self, tokens: int) -> int:
        """Rows that reach the experts when each rank brings `tokens`: all of them, as after an all-gather."""
        return tokens * self.deployment.dp_size


@dataclass(slots=True)
class Entrant:
    """A candidate that somebody can bind, and the numbers of tokens at which the resolver admits it."""

    candidate: MoECandidate
    tokens: set[int] = field(default_factory=set)
    captured: set[int] = field(default_factory=set)
    """Those at which it is admitted under CUDA graphs too."""
    refused: dict[int, str] = field(default_factory=dict)
    """Why not at the others."""


def entrants(
    problem: MoEProblem,
    tokens: Sequence[int],
    site: Site,
    kind: CandidateKind,
    beside: frozenset[str] = frozenset(),
) -> list[Entrant]:
    """The candidates of `kind` with an adapter, within the request or `beside`, asked for each number of tokens.

    Those that compute other formats of weights are no contenders, and are left out.
    """
    found: dict[str, Entrant] = {}
    requested = selectors_of(site.request, site.catalog)[kind]

    def of(identity: str) -> Entrant | None:
        candidate = site.catalog.get(identity)
        can_run = candidate.factory is not None and candidate.scheduler_kind is SchedulerKind.EXTERNAL_COMM
        is_asked = candidate in requested or identity in beside
        return found.setdefault(identity, Entrant(candidate)) if can_run and is_asked else None

    for count in tokens:
        decision = _decision(problem, count, site, kind, CudaGraphMode.NONE)
        under_graphs = _decision(problem, count, site, kind, CudaGraphMode.FULL)
        captured = {row.identity for row in under_graphs.eligible}
        for row in decision.eligible:
            if (entrant := of(row.identity)) is not None:
                entrant.tokens.add(count)
                if row.identity in captured:
                    entrant.captured.add(count)
        for refused in decision.rejected:
            if _takes_part(refused) and (entrant := of(refused.identity)) is not None:
                entrant.refused[count] = plain(reason(refused.rejections[0]))
    return list(found.values())


def _takes_part(refused: RejectedCandidate) -> bool:
    return refused.rejections[0].reason is not MoERejectReason.BANNED and not any(
        rejection.reason is MoERejectReason.QUANT_UNSUPPORTED and rejection.fact == "quant"
        for rejection in refused.rejections
    )


def _decision(problem: MoEProblem, tokens: int, site: Site, kind: CandidateKind, graph: CudaGraphMode) -> Decision:
    deployment = site.deployment.evolve(max_num_tokens=tokens, cuda_graph=graph)
    report = resolve_moe_impl(problem, deployment, candidates=site.catalog, request=site.request)
    return next(d for d in report.decisions if d.kind is kind)
