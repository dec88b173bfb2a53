"""The one entry point of selection: a pure function from declared facts to a report."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.catalog import Catalog
from moe_core.contract.check import check
from moe_core.contract.decision import Decision, Degradation
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.eligibility import Assumption
from moe_core.contract.evidence import Evidence
from moe_core.contract.memory import weight_bytes_per_rank, workspace_bytes
from moe_core.contract.problem import MoEProblem
from moe_core.contract.report import MemoryRow, MoEResolutionReport
from moe_core.contract.request import MoERequest
from moe_core.contract.vocabulary import CandidateKind
from moe_core.resolve.ask import ask_all
from moe_core.resolve.decide import Question, decide
from moe_core.resolve.selector import Selector, select

NO_EVIDENCE = Evidence()
AUTO_REQUEST = MoERequest()


def resolve_moe_impl(
    problem: MoEProblem,
    deployment: MoEDeployment,
    *,
    candidates: Catalog | Iterable[MoECandidate],
    request: MoERequest = AUTO_REQUEST,
    evidence: Evidence = NO_EVIDENCE,
) -> MoEResolutionReport:
    """Select backend, communication strategy and routing kernel for one MoE layer.

    Pure: equal arguments give equal reports, byte for byte, on any machine. Every candidate is asked, and the report
    holds every reason, whether or not there is a winner.

    Raises:
        UnknownRequestError: the request names a family, identity or segment that nobody registered.
    """
    catalog = candidates if isinstance(candidates, Catalog) else Catalog.of(candidates)
    return _resolve(problem, deployment, request, catalog, evidence)


def clear_cache() -> None:
    """Forget resolutions (for benchmarks; results never depend on the cache)."""
    _resolve.cache_clear()


@lru_cache(maxsize=4096)
def _resolve(
    problem: MoEProblem, deployment: MoEDeployment, request: MoERequest, catalog: Catalog, evidence: Evidence
) -> MoEResolutionReport:
    selectors = selectors_of(request, catalog)
    decisions: list[Decision] = []
    degradations: list[Degradation] = []
    assumptions: list[Assumption] = []
    buckets: list[int | None] = [*sorted(set(request.token_buckets))] or [None]
    for bucket in buckets:
        here = deployment if bucket is None else _at(deployment, bucket)
        answers = ask_all(problem, here, request, catalog)
        outcome = decide(Question(problem, here, request, evidence, bucket, selectors, answers))
        decisions += outcome.decisions
        degradations += outcome.degradations
        assumptions += outcome.assumptions
    return MoEResolutionReport(
        problem=problem,
        deployment=deployment,
        request=request,
        catalog=catalog.fingerprint,
        decisions=tuple(decisions),
        degradations=tuple(dict.fromkeys(degradations)),
        assumptions=tuple(dict.fromkeys(assumptions)),
        invalid=check(problem, deployment),
        plugin_errors=catalog.plugin_errors,
        notes=_idle_bans(request, catalog),
        memory=MemoryRow(
            weights=weight_bytes_per_rank(problem, deployment),
            workspace=workspace_bytes(problem, deployment),
            reserved=deployment.reserved_memory,
            device=deployment.environment.device_memory,
        ),
    )


def selectors_of(request: MoERequest, catalog: Catalog) -> dict[CandidateKind, Selector]:
    """What the request means for each kind; raises for names that nobody registered, before anything is asked."""
    of_kind = {kind: [c for c in catalog.candidates if c.kind is kind] for kind in CandidateKind}
    return {
        CandidateKind.BACKEND: select(request.backend, of_kind[CandidateKind.BACKEND]),
        CandidateKind.COMMUNICATION: select(request.communication, of_kind[CandidateKind.COMMUNICATION]),
        CandidateKind.ROUTING: select("auto", of_kind[CandidateKind.ROUTING]),
    }


def _at(deployment: MoEDeployment, tokens: int) -> MoEDeployment:
    limit = deployment.max_num_tokens
    return deployment.evolve(max_num_tokens=tokens if limit is None else min(tokens, limit))


def _idle_bans(request: MoERequest, catalog: Catalog) -> tuple[str, ...]:
    known = {e.plugin.casefold() for e in catalog.plugin_errors}
    known |= {(e.distribution or "").casefold() for e in catalog.plugin_errors}
    for entry in catalog:
        known |= {entry.candidate.identity, entry.candidate.family.casefold(), (entry.distribution or "").casefold()}
    return tuple(f"the ban {ban!r} matches no candidate" for ban in request.bans if ban.casefold() not in known)
