"""An experts module of transformers, bound to the backend that its report selected."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from moe_core.bind import check_weights
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.report import MoEResolutionReport
from moe_core.contract.request import MoERequest
from moe_core.contract.vocabulary import SchedulerKind
from moe_core.environment import current
from moe_core.environment.gpus import NO_GPU
from moe_core.execution import Binding, MoEBackend, MoERunContext, bind_factory, refuse
from moe_core.fused_weights import FusedExpertWeights, TakesFused
from moe_core.integrations.transformers.description import DTYPES, ExpertsDescription, describe
from moe_core.registry import Registry, load_registry
from moe_core.resolve import resolve_moe_impl

Geometry = tuple[object, ...]
_TORCH = {dtype: torch_dtype for torch_dtype, dtype in DTYPES.items()}


class EmbeddedExperts:
    """What runs in place of an experts module's own forward, for one geometry of its parameters.

    Holds the parameters, or views of them: where the backend copies weights, an update is noticed by the version that
    torch counts and prepared again.
    """

    def __init__(self, module: nn.Module, top_k: int, request: MoERequest) -> None:
        description = describe(module, top_k)
        self.request = request
        self._layout, self._interleaved = description.layout, description.interleaved
        tensors = self._layout.tensors(module)
        self._geometry = _geometry(tensors, top_k)
        device = tensors[0].device
        self.report = report_for(description, device, request)
        self._binding, self._backend = _bind(self.report, device, self._weights(tensors))
        self._loaded: tuple[tuple[int, int], ...] | None = None
        self._kept: tuple[torch.Tensor, ...] = ()

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the weights, and so of the rows that :meth:`run` takes."""
        return self._binding.dtype

    def fits(self, module: nn.Module, top_k: int, request: MoERequest) -> bool:
        """Whether this was made for such parameters, calls and request."""
        return self.request is request and self._geometry == _geometry(self._layout.tensors(module), top_k)

    def load(self, module: nn.Module) -> None:
        """Prepare the module's parameters, unless the backend has them as they are now."""
        tensors = self._layout.tensors(module)
        # A graph belongs to one forward: with gradients, the views are made anew.
        recorded = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        state = None if recorded else tuple((t.data_ptr(), _version(t)) for t in tensors)
        if state is not None and state == self._loaded:
            return
        weights = self._weights(tensors)
        if isinstance(self._backend, TakesFused):
            self._backend.prepare_fused(weights)
        else:
            self._backend.prepare(weights.apart())
        # While they are kept, no other tensor can be at the same address.
        self._loaded, self._kept = state, tuple(t.detach() for t in tensors)

    def run(self, x_TH: torch.Tensor, ids_TK: torch.Tensor, scales_TK: torch.Tensor) -> torch.Tensor:
        """The weighted sum of each row's experts, ``[T, H]``; an id of no expert contributes zero."""
        if not x_TH.shape[0]:
            return x_TH.clone()  # kernels refuse the null pointer of no rows
        x, x_sf = self._backend.quantize_input(x_TH.contiguous())
        context = MoERunContext(
            x=x, x_sf=x_sf, token_selected_slots=ids_TK.to(torch.int32), token_final_scales=scales_TK.float()
        )
        return self._backend.run_moe(context)

    def run_normed(
        self, x_TH: torch.Tensor, ids_TK: torch.Tensor, scales_TK: torch.Tensor, norm: nn.Module
    ) -> torch.Tensor:
        """The same with a norm of each expert's own output, for which every pair of token and expert is a row."""
        T, K = ids_TK.shape
        ones_R1 = torch.ones_like(scales_TK).reshape(-1, 1)
        y_RH = norm(self.run(x_TH.repeat_interleave(K, dim=0), ids_TK.reshape(-1, 1), ones_R1))
        is_ours_TK1 = ((ids_TK >= 0) & (ids_TK < self._binding.num_slots)).unsqueeze(-1)
        y_TKH = torch.where(is_ours_TK1, y_RH.view(T, K, y_RH.shape[-1]), 0.0)
        return (y_TKH * torch.where(is_ours_TK1, scales_TK.unsqueeze(-1), 0.0)).sum(dim=1)

    def _weights(self, tensors: tuple[torch.Tensor, ...]) -> FusedExpertWeights:
        return self._layout.weights(tensors, self._interleaved)


def report_for(description: ExpertsDescription, device: torch.device, request: MoERequest) -> MoEResolutionReport:
    """What is selected for a described module on `device`: one rank, whose tokens transformers brings itself."""
    return resolve_moe_impl(
        description.problem,
        MoEDeployment(environment=_environment(device)),
        candidates=_registry().catalog,
        request=request,
    )


def _bind(report: MoEResolutionReport, device: torch.device, weights: FusedExpertWeights) -> tuple[Binding, MoEBackend]:
    candidate = _registry().catalog.get(report.winner().identity)
    dtype = report.problem.dtype_act
    assert dtype is not None  # the description has it
    binding = Binding(
        candidate=candidate, problem=report.problem, deployment=report.deployment, device=device, dtype=_TORCH[dtype]
    )
    errors = check_weights(binding, weights.apart())
    if candidate.scheduler_kind is not SchedulerKind.EXTERNAL_COMM:
        errors.append(f"it is a {candidate.scheduler_kind} backend, and in transformers the model exchanges tokens")
    refuse(str(candidate), errors)
    backend: MoEBackend = bind_factory(candidate)(binding)
    return binding, backend


@cache
def _registry() -> Registry:
    return load_registry()


def _environment(device: torch.device) -> MoEEnvironment:
    environment = current(_registry())
    if device.type == "cpu":
        return environment.evolve(**NO_GPU, device_name=None, device_memory=None)
    return environment


def _geometry(tensors: tuple[torch.Tensor, ...], top_k: int) -> Geometry:
    return (top_k, *((t.shape, t.dtype, t.device) for t in tensors))


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
