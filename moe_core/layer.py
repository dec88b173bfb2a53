"""The layer: routing, dispatch, experts, combine, exactly as a report says."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

import torch

from moe_core.bind import CandidateSource, binding_of, check_weights
from moe_core.communication import Communication, Dispatched
from moe_core.contract.report import MoEResolutionReport
from moe_core.contract.vocabulary import CandidateKind
from moe_core.execution import Binding, MoEBackend, MoERunContext, ParallelGroups, bind_factory, refuse
from moe_core.routing import RoutingConfig, select_experts
from moe_core.weights import ExpertWeights


class ConfigurableMoE(torch.nn.Module):
    """The routed experts of one layer on one rank. Shared experts are the model's own and stay outside.

    Holds resources of all ranks together: use it as a context manager, or call :meth:`destroy` on every rank.
    """

    router_bias: torch.Tensor | None
    routing_table: torch.Tensor | None

    def __init__(
        self,
        report: MoEResolutionReport,
        binding: Binding,
        backend: MoEBackend,
        communication: Communication,
        routing: RoutingConfig,
        *,
        router_bias: torch.Tensor | None,
        routing_table: torch.Tensor | None,
    ) -> None:
        super().__init__()
        self.report = report
        self.backend = backend
        self.communication = communication
        self.routing = routing
        self._hidden_size, self._dtype = binding.hidden_size, binding.dtype
        self._weigh_input = bool(report.problem.apply_router_weight_on_input)
        # They belong to the model's checkpoint, not to the layer's.
        self.register_buffer("router_bias", router_bias, persistent=False)
        self.register_buffer("routing_table", routing_table, persistent=False)

    @classmethod
    def from_report(
        cls,
        report: MoEResolutionReport,
        weights: ExpertWeights,
        *,
        router_bias: torch.Tensor | None = None,
        routing_table: torch.Tensor | None = None,
        catalog: CandidateSource | None = None,
        device: torch.device | str | None = None,
        groups: ParallelGroups | None = None,
    ) -> Self:
        """The layer that `report` selected, and no other.

        Args:
            weights: this rank's experts (all of them on a single rank), in the problem's activation type.
            router_bias: float32 correction bias ``[E]`` of the choice.
            routing_table: expert ids ``[vocabulary, K]`` of a hashed router.
            catalog: where the winner is looked up by identity; default: the installed plugins.
            device: default: the device of the report's environment.
            groups: this rank's place; needed when the report is for several ranks.

        Raises:
            UnresolvedError: the report has no winner.
            KeyError: no plugin here has the winner.
            BindError: report, weights and machine do not fit; with everything that does not.
            ValueError: the routing method, the activation or one of its constants is unknown.
        """
        if catalog is None:
            from moe_core.registry import load_catalog

            catalog = load_catalog()
        backend_binding, comm_binding = (
            binding_of(report, kind, catalog=catalog, device=device, groups=groups)
            for kind in (CandidateKind.BACKEND, CandidateKind.COMMUNICATION)
        )
        errors = check_weights(backend_binding, weights) + _check_router(report, router_bias, routing_table)
        refuse(str(backend_binding.candidate), errors)
        routing = RoutingConfig.of(report.problem)
        backend: MoEBackend = bind_factory(backend_binding.candidate)(backend_binding)
        backend.prepare(weights)
        # The last step, so that no failure can leave a strategy that other ranks wait for.
        communication: Communication = bind_factory(comm_binding.candidate)(comm_binding)
        return cls(
            report,
            backend_binding,
            backend,
            communication,
            routing,
            router_bias=router_bias,
            routing_table=routing_table,
        )

    def forward(
        self,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        input_ids: torch.Tensor | None = None,
        all_rank_num_tokens: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """The routed experts' sum per token, in the shape and element type of `hidden_states`.

        Args:
            hidden_states: ``[T, H]`` or ``[..., H]``; T may be zero.
            router_logits: ``[T, E]`` or ``[..., E]``, of any float type.
            input_ids: token ids ``[T]`` or ``[...]``, for a hashed router.
            all_rank_num_tokens: T of every rank, the same on every rank; needed when tokens are exchanged.
        """
        if hidden_states.shape[-1] != self._hidden_size or hidden_states.dtype is not self._dtype:
            raise ValueError(
                f"hidden_states are {list(hidden_states.shape)} of {hidden_states.dtype}, needed "
                f"[..., {self._hidden_size}] of {self._dtype}"
            )
        x_TH = hidden_states.reshape(-1, self._hidden_size)
        ids_TK, scales_TK = select_experts(
            self.routing,
            router_logits.reshape(-1, router_logits.shape[-1]),
            self.router_bias,
            None if input_ids is None else input_ids.reshape(-1),
            self.routing_table,
        )
        weighed_TH = x_TH
        if self._weigh_input:
            weighed_TH, scales_TK = x_TH * scales_TK.to(x_TH.dtype), torch.ones_like(scales_TK)
        x, x_sf = self.backend.quantize_input(weighed_TH)
        rows = self.communication.dispatch(x, x_sf, ids_TK, scales_TK, all_rank_num_tokens or (x_TH.shape[0],))
        # Kernels refuse the null pointer of an empty tensor. The slice keeps the graph for gradients.
        y_NH = self._run(rows) if rows.x.shape[0] else x_TH[:0].clone()
        return self.communication.combine(y_NH).view(hidden_states.shape)

    def destroy(self) -> None:
        """Release what the layer holds; all ranks together. Calling it again does nothing."""
        self.communication.destroy()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.destroy()

    def _run(self, rows: Dispatched) -> torch.Tensor:
        context = MoERunContext(
            x=rows.x,
            x_sf=rows.x_sf,
            token_selected_slots=rows.token_selected_slots,
            token_final_scales=rows.token_final_scales,
        )
        return self.backend.run_moe(context)


def _check_router(
    report: MoEResolutionReport, router_bias: torch.Tensor | None, routing_table: torch.Tensor | None
) -> list[str]:
    problem = report.problem
    errors = []
    if problem.routing_bias and router_bias is None:
        errors.append("router_bias: found nothing, needed one: the problem says routing_bias=True")
    if problem.routing_bias is False and router_bias is not None:
        errors.append("router_bias: found a tensor, needed none: the problem says routing_bias=False")
    if router_bias is not None and router_bias.dtype is not torch.float32:
        errors.append(f"router_bias: found {router_bias.dtype}, needed torch.float32")
    if router_bias is not None and router_bias.shape != (problem.num_experts,):
        errors.append(f"router_bias: found {list(router_bias.shape)}, needed [{problem.num_experts}]")
    if bool(problem.hashed_routing) != (routing_table is not None):
        errors.append(
            f"routing_table: found {'a tensor' if routing_table is not None else 'nothing'}, and the problem says "
            f"hashed_routing={problem.hashed_routing}"
        )
    return errors
