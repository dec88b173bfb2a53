"""Resolve every MoE layer of a model: equal questions once, scoped requests applied, memory counted together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.catalog import Catalog
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.evidence import Evidence
from moe_core.contract.memory import weight_bytes_per_rank
from moe_core.contract.model_report import LayerReport, MoEModelReport
from moe_core.contract.problem import MoEProblem
from moe_core.contract.request import MoERequest
from moe_core.contract.vocabulary import LayerRole, RequestedBy
from moe_core.resolve.resolver import AUTO_REQUEST, NO_EVIDENCE, resolve_moe_impl


class LayerGroup(Protocol):
    """Layers of one role that compute the same problem."""

    @property
    def role(self) -> LayerRole: ...
    @property
    def layers(self) -> tuple[int, ...]: ...
    @property
    def problem(self) -> MoEProblem: ...


def resolve_model(
    groups: Iterable[LayerGroup],
    deployment: MoEDeployment,
    *,
    candidates: Catalog | Iterable[MoECandidate],
    request: MoERequest = AUTO_REQUEST,
    evidence: Evidence = NO_EVIDENCE,
    model: str = "",
) -> MoEModelReport:
    """One report per distinct (problem, request). Each counts the other layers' experts as reserved memory."""
    catalog = candidates if isinstance(candidates, Catalog) else Catalog.of(candidates)
    groups = list(groups)
    bytes_of = [weight_bytes_per_rank(group.problem, deployment) for group in groups]
    known = [size * len(group.layers) for size, group in zip(bytes_of, groups, strict=True) if size is not None]
    total = sum(known)
    reports = []
    for group, own in zip(groups, bytes_of, strict=True):
        others = deployment.reserved_memory + total - (own or 0)
        here = deployment.evolve(reserved_memory=others)
        for layers, asked in _by_request(group, request):
            report = resolve_moe_impl(group.problem, here, candidates=catalog, request=asked, evidence=evidence)
            reports.append(LayerReport(role=group.role, layers=layers, report=report))
    return MoEModelReport(model=model, layers=tuple(reports), weight_bytes=total if len(known) == len(groups) else None)


def _by_request(group: LayerGroup, request: MoERequest) -> list[tuple[tuple[int, ...], MoERequest]]:
    split: dict[MoERequest, list[int]] = {}
    for layer in group.layers:
        split.setdefault(request_for(request, layer, group.role, group.problem), []).append(layer)
    return [(tuple(layers), asked) for asked, layers in split.items()]


def request_for(request: MoERequest, layer: int, role: LayerRole, problem: MoEProblem) -> MoERequest:
    """The request as it stands for one layer: of the scopes that apply, a later one beats an earlier one."""
    changes: dict[str, object] = {}
    for scope in request.scopes:
        if scope.role is not None and scope.role is not role:
            continue
        if scope.quant is not None and scope.quant is not problem.quant:
            continue
        if scope.layers is not None and not in_layers(scope.layers, layer):
            continue
        for field in ("backend", "communication"):
            asked = getattr(scope, field)
            if asked is not None:
                changes |= {field: asked, f"{field}_requested_by": RequestedBy.ARGUMENT}
    return request.evolve(scopes=(), **changes) if request.scopes else request


def in_layers(pattern: str, layer: int) -> bool:
    """Whether `pattern` (``3``, ``0-2``, ``4-``, several with commas) names `layer`; ``ValueError`` if malformed."""
    for part in pattern.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            raise ValueError(f"layers {pattern!r}: found {part!r}, needed an index, a range such as 0-2, or 4-")
        if int(first) <= layer and (layer <= int(last) if last else dash or layer == int(first)):
            return True
    return False
