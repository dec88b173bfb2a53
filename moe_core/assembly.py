"""From a report to what runs: the winners' factories by identity, each called once whatever the token buckets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias, cast

import torch

from moe_core.bind import CandidateSource, binding_of, check_report, check_weights
from moe_core.communication import Communication
from moe_core.contract.report import MoEResolutionReport
from moe_core.contract.vocabulary import CandidateKind, SchedulerKind
from moe_core.execution import Binding, MoEBackend, ParallelGroups, SharesPrepared, bind_factory, refuse
from moe_core.resolve import strategies_of
from moe_core.routing import Route, RoutingConfig, select_experts
from moe_core.schedule import (
    NO_BALANCER,
    ExternalCommMoEScheduler,
    FusedCommMoEScheduler,
    LayerBalancer,
    LayerParts,
)
from moe_core.schedule.abilities import LeavesUnfinalized, UnfinalizedCombine
from moe_core.schedule.parts import AuxStream, SelectExperts
from moe_core.weights import ExpertWeights

Scheduler: TypeAlias = ExternalCommMoEScheduler | FusedCommMoEScheduler

SCHEDULERS: Final[dict[SchedulerKind, type[Scheduler]]] = {
    SchedulerKind.EXTERNAL_COMM: ExternalCommMoEScheduler,
    SchedulerKind.FUSED_COMM: FusedCommMoEScheduler,
}


@dataclass(frozen=True)
class Site:
    """Where a report is bound, and what the model adds to its layer."""

    catalog: CandidateSource
    device: torch.device | str | None = None
    groups: ParallelGroups | None = None
    balancer: LayerBalancer = NO_BALANCER
    unfinalized_combine: UnfinalizedCombine | None = None


@dataclass(frozen=True)
class Bound:
    """A backend with its weights, and what it was made from."""

    binding: Binding
    backend: MoEBackend


def bindings_of(report: MoEResolutionReport, site: Site) -> tuple[list[Binding], list[Binding]]:
    """What the factories of backends and of strategies are given; raises :class:`BindError` with every misfit."""
    is_balanced = site.balancer is not NO_BALANCER
    errors = check_report(report, device=site.device, groups=site.groups, is_balanced=is_balanced)
    refuse(report.winner().identity, errors)

    def of(identities: Iterable[str]) -> list[Binding]:
        return [binding_of(report, site.catalog.get(i), device=site.device, groups=site.groups) for i in identities]

    winners = (d.winner for d in report.decisions if d.kind is CandidateKind.BACKEND and d.winner)
    return of(dict.fromkeys(winners)), of(strategies_of(report))


def make_route(report: MoEResolutionReport, site: Site, binding: Binding) -> Route:
    """What the routing decision chose; the twin where no routing candidate was asked."""
    if all(d.kind is not CandidateKind.ROUTING for d in report.decisions):
        return partial(select_experts, RoutingConfig.of(report.problem))
    winners = {d.winner for d in report.decisions if d.kind is CandidateKind.ROUTING}
    if len(winners) > 1:
        refuse("the router", ["the report routes by another kernel in each token bucket; resolve without buckets"])
    candidate = site.catalog.get(report.winner(CandidateKind.ROUTING).identity)
    made: Route = bind_factory(candidate)(replace(binding, candidate=candidate))
    return made


def make_backends(bindings: Sequence[Binding], weights: ExpertWeights, errors: Sequence[str]) -> list[Bound]:
    """The backends with this rank's weights prepared; `errors` are misfits that were found elsewhere."""
    for binding in bindings:
        refuse(binding.candidate.identity, [*check_weights(binding, weights), *errors])
    made = [Bound(binding, bind_factory(binding.candidate)(binding)) for binding in bindings]
    _prepare(made, weights)
    return made


def reload_backends(made: Sequence[Bound], weights: ExpertWeights) -> None:
    """Prepare other weights; raises :class:`BindError` with every misfit, and then every backend is as it was."""
    for bound in made:
        errors = check_weights(bound.binding, weights)
        if not bound.binding.candidate.capabilities.reloadable:
            errors.append("it takes weights once; make a new layer")
        if bound.binding.deployment.eplb_enabled:
            errors.append("the load balancer has moved experts between slots since; make a new layer")
        refuse(bound.binding.candidate.identity, errors)
    _prepare(made, weights)


def _prepare(made: Sequence[Bound], weights: ExpertWeights) -> None:
    """Prepare `weights` once for each layout: the first backend does, and the others of its layout take that over."""
    of_layout: dict[str, list[Bound]] = {}
    for bound in made:
        candidate = bound.binding.candidate
        of_layout.setdefault(candidate.prepared_layout or candidate.identity, []).append(bound)
    for together in of_layout.values():
        sharing = [_sharing(bound) for bound in together] if len(together) > 1 else []
        together[0].backend.prepare(weights)
        for other in sharing[1:]:
            other.adopt(sharing[0].prepared)


def _sharing(bound: Bound) -> SharesPrepared:
    backend, candidate = bound.backend, bound.binding.candidate
    if not isinstance(backend, SharesPrepared):
        refuse(
            candidate.identity,
            [
                f"prepared_layout is {candidate.prepared_layout!r}, as another backend's of this layer, but "
                f"{type(backend).__name__} cannot share it; needed SharesPrepared: a property prepared, and adopt()"
            ],
        )
    return cast("SharesPrepared", backend)


def make_strategies(bindings: Sequence[Binding]) -> dict[str, Communication]:
    """The strategies by identity, on all ranks together; when one cannot be made, none is left behind."""
    made: dict[str, Communication] = {}
    try:
        for binding in bindings:
            made[binding.candidate.identity] = bind_factory(binding.candidate)(binding)
    except BaseException:
        destroy_all(made.values())
        raise
    return made


def destroy_all(strategies: Iterable[Communication]) -> None:
    """Release every strategy, in the order in which they were made; an error does not keep the others."""
    errors = []
    for strategy in strategies:
        try:
            strategy.destroy()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]


def check_unfinalized(site: Site, backends: Sequence[Binding], strategies: Sequence[Binding]) -> list[str]:
    """Why a model's own weighing and summing cannot be used with these candidates."""
    if site.unfinalized_combine is None:
        return []
    errors = [
        f"unfinalized_combine: {b.candidate.identity} combines rows by router weight itself"
        for b in strategies
        if not b.candidate.finalize_before_combine
    ]
    if any(b.problem.apply_router_weight_on_input for b in backends):
        errors.append("unfinalized_combine: the router weight goes on the input, and would be applied twice")
    return errors


def make_schedulers(
    made: Sequence[Bound], strategies: dict[str, Communication], select_experts: SelectExperts, site: Site
) -> dict[str, Scheduler]:
    """A scheduler for each backend, by identity; refuses a backend that does not leave its output unfinalized."""
    schedulers = {}
    for bound in made:
        candidate = bound.binding.candidate
        if site.unfinalized_combine is not None and not isinstance(bound.backend, LeavesUnfinalized):
            refuse(candidate.identity, ["unfinalized_combine: the backend has no run_unfinalized"])
        parts = LayerParts(
            binding=bound.binding,
            backend=bound.backend,
            select_experts=select_experts,
            strategies=strategies,
            balancer=site.balancer,
            unfinalized_combine=site.unfinalized_combine,
            aux=_aux_stream(bound.binding),
        )
        schedulers[candidate.identity] = SCHEDULERS[candidate.scheduler_kind](parts)
    return schedulers


def _aux_stream(binding: Binding) -> AuxStream | None:
    deployment = binding.deployment
    limit, most = deployment.moe_max_num_tokens, deployment.max_num_tokens
    is_chunked = limit is not None and (most is None or limit < most * deployment.dp_size)
    if binding.device.type != "cuda" or not is_chunked:
        return None
    from moe_core.schedule.streams import CudaAuxStream

    return CudaAuxStream(binding.device)
