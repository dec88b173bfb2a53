"""From a report to what runs: the winner's factory by identity, on the device that the report is for."""

from __future__ import annotations

from typing import Protocol

import torch

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.problem import MoEProblem
from moe_core.contract.report import MoEResolutionReport
from moe_core.contract.vocabulary import CandidateKind, Device, SchedulerKind
from moe_core.execution import TORCH_DTYPE, Binding, ParallelGroups, refuse
from moe_core.quantization import weight_format
from moe_core.weights import ExpertWeights, misfits


class CandidateSource(Protocol):
    """Where identities become candidates: a catalog."""

    def get(self, identity: str) -> MoECandidate:
        """The candidate of an identity; raises ``KeyError`` when there is none."""


def binding_of(
    report: MoEResolutionReport,
    kind: CandidateKind,
    *,
    catalog: CandidateSource,
    device: torch.device | str | None,
    groups: ParallelGroups | None,
) -> Binding:
    """What the factory of the winner of `kind` is given.

    Raises :class:`UnresolvedError` without a winner, ``KeyError`` when the winner is in no plugin here, and
    :class:`BindError` when the report is for other devices or for something that the layer does not run.
    """
    winner = report.winner(kind)
    refuse(winner.identity, [*_unrunnable(report, groups), *_elsewhere(report, device)])
    dtype = report.problem.dtype_act
    assert dtype is not None  # _unrunnable has refused it
    return Binding(
        candidate=catalog.get(winner.identity),
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


def _unrunnable(report: MoEResolutionReport, groups: ParallelGroups | None) -> list[str]:
    deployment = report.deployment
    errors = []
    if report.scheduler_kind is not SchedulerKind.EXTERNAL_COMM:
        errors.append(f"scheduler {report.scheduler_kind}: the layer runs {SchedulerKind.EXTERNAL_COMM} backends")
    if deployment.world_size > 1 and groups is None:
        errors.append(
            f"the report is for {deployment.world_size} ranks (ep_size {deployment.ep_size}, tp_size "
            f"{deployment.tp_size}): give groups=ParallelGroups(rank, ep_rank, tp_rank, group)"
        )
    if deployment.eplb_enabled or deployment.dwdp_size > 1:
        errors.append("the layer moves no experts between ranks: resolve without EPLB and DWDP")
    if report.problem.dtype_act is None:
        errors.append("dtype_act is unknown; give it in the problem")
    errors += _unreadable(report.problem)
    for kind in (CandidateKind.BACKEND, CandidateKind.COMMUNICATION):
        winners = {d.winner for d in report.decisions if d.kind is kind}
        if len(winners) > 1:
            errors.append(f"the {kind} depends on the token bucket: resolve for one bucket")
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
