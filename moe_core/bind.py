"""Whether report, weights and machine fit, and what the factories of the winners are given."""

from __future__ import annotations

from typing import Protocol

import torch

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.problem import MoEProblem
from moe_core.contract.report import MoEResolutionReport
from moe_core.contract.vocabulary import Device, RoutingMethodType
from moe_core.execution import TORCH_DTYPE, Binding, ParallelGroups
from moe_core.quantization import weight_format
from moe_core.weights import ExpertWeights, misfits


class CandidateSource(Protocol):
    """Where identities become candidates: a catalog."""

    def get(self, identity: str) -> MoECandidate:
        """The candidate of an identity; raises ``KeyError`` when there is none."""


def check_report(
    report: MoEResolutionReport,
    *,
    device: torch.device | str | None,
    groups: ParallelGroups | None,
    is_balanced: bool = False,
) -> list[str]:
    """Everything that keeps `report` from being bound here, whoever won: other devices, ranks without groups."""
    return [*_unrunnable(report, groups, is_balanced), *_elsewhere(report, device)]


def binding_of(
    report: MoEResolutionReport,
    candidate: MoECandidate,
    *,
    device: torch.device | str | None,
    groups: ParallelGroups | None,
) -> Binding:
    """What the factory of `candidate` is given; the report must have passed :func:`check_report`."""
    dtype = report.problem.dtype_act
    assert dtype is not None  # check_report has refused it
    return Binding(
        candidate=candidate,
        problem=report.problem,
        deployment=report.deployment,
        device=_on(report, device),
        dtype=TORCH_DTYPE[dtype],
        groups=groups or ParallelGroups(),
    )


def check_weights(binding: Binding, weights: ExpertWeights) -> list[str]:
    """Everything in which `weights` are not this rank's share of the problem."""
    problem = binding.problem
    errors = list(
        misfits(
            weights,
            num_experts=binding.num_local_slots,
            hidden_size=binding.hidden_size,
            intermediate_size=binding.intermediate_size,
            gated=binding.activation.kind.is_gated,
            format_=binding.weight_format,
        )
    )
    for name, value in weights.given().items():
        if isinstance(value, torch.Tensor) and value.dtype is not binding.dtype:
            errors.append(f"{name}: found {value.dtype}, needed {binding.dtype}")
    for name, tensor in weights.tensors().items():
        if tensor.device != binding.device:
            errors.append(f"{name}: found on {tensor.device}, needed on {binding.device}")
    biased = [name for name in weights.given() if name.startswith("b")]
    if biased and problem.bias is False:
        errors.append(f"{', '.join(biased)}: found a bias, needed none: the problem says bias=False")
    if biased and not binding.candidate.capabilities.supports_expert_bias:
        errors.append(f"{', '.join(biased)}: found a bias, and {binding.candidate.identity} has no expert bias")
    if problem.bias and not biased:
        errors.append("b1_EI, b2_EH: found no bias, needed one: the problem says bias=True")
    return errors


def _unrunnable(report: MoEResolutionReport, groups: ParallelGroups | None, is_balanced: bool) -> list[str]:
    deployment = report.deployment
    errors = []
    if deployment.world_size > 1 and groups is None:
        errors.append(
            f"the report is for {deployment.world_size} ranks (ep_size {deployment.ep_size}, tp_size "
            f"{deployment.tp_size}): give groups=ParallelGroups(rank, ep_rank, tp_rank, group)"
        )
    if deployment.eplb_enabled is not is_balanced:
        found = "a balancer" if is_balanced else "none"
        errors.append(f"balancer: found {found}, and the report says eplb_enabled={deployment.eplb_enabled}")
    if deployment.dwdp_size > 1:
        errors.append("the layer moves no weights between ranks: resolve without DWDP")
    if report.problem.routing is RoutingMethodType.UNSPECIFIED:
        errors.append("routing is Unspecified: the model routes by itself, and the layer cannot; name a method")
    if report.problem.dtype_act is None:
        errors.append("dtype_act is unknown; give it in the problem")
    errors += _unreadable(report.problem)
    return errors


def _unreadable(problem: MoEProblem) -> list[str]:
    """Why the format of the weights cannot be told."""
    if problem.quant is None:
        return ["quant is unknown; give it in the problem"]
    try:
        weight_format(problem.quant, problem.quant_group_size)
    except ValueError as error:
        return [str(error)]
    return []


def _on(report: MoEResolutionReport, device: torch.device | str | None) -> torch.device:
    chosen = torch.device(device or report.deployment.environment.device or "cpu")
    if chosen.type == "cuda" and chosen.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return chosen


def _elsewhere(report: MoEResolutionReport, device: torch.device | str | None) -> list[str]:
    environment = report.deployment.environment
    if environment.device is None and device is None:
        return ["the report's environment does not say on which device; give device"]
    asked = torch.device(device or environment.device or "cpu").type
    if environment.device is not None and asked != environment.device:
        return [f"the report is for {environment.device}, and device is {asked}; resolve for this machine"]
    if asked != Device.CUDA:
        return []
    if not torch.cuda.is_available():
        return ["the report is for cuda, and torch finds no CUDA device here; resolve for this machine"]
    major, minor = torch.cuda.get_device_capability(_on(report, device))
    if environment.sm not in (None, 10 * major + minor):
        return [f"the report is for SM {environment.sm}, and this device is SM {10 * major + minor}"]
    return []
