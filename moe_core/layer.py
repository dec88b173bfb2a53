"""The layer: routing, dispatch, experts, combine, exactly as a report says."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch

from moe_core.assembly import (
    Bound,
    Site,
    bindings_of,
    check_unfinalized,
    destroy_all,
    make_backends,
    make_route,
    make_schedulers,
    make_strategies,
    reload_backends,
)
from moe_core.bind import CandidateSource
from moe_core.communication import Communication
from moe_core.compiled import make_callable, run_opaque
from moe_core.contract.decision import Degradation
from moe_core.contract.plan import ForwardPlan
from moe_core.contract.report import MoEResolutionReport
from moe_core.execution import MoEBackend, ParallelGroups
from moe_core.resolve import plan_forward
from moe_core.routing import Router
from moe_core.schedule import NO_BALANCER, ForwardInputs, LayerBalancer, Repeats
from moe_core.schedule.abilities import UnfinalizedCombine, UnfinalizedOutput
from moe_core.schedule.inputs import NO_EVENT, Event, InputReady
from moe_core.shortcut import Shortcut
from moe_core.weights import ExpertWeights


class MoEDegradationWarning(UserWarning):
    """A forward ran with less than its report selected; the first time for each cause."""


class ConfigurableMoE(torch.nn.Module):
    """The routed experts of one layer on one rank. Shared experts are the model's own and stay outside.

    Holds resources of all ranks together: use it as a context manager, or call :meth:`destroy` on every rank.
    """

    degradations: Counter[Degradation]
    """How often a forward stepped down from what the report selected, by cause."""

    def __init__(
        self,
        report: MoEResolutionReport,
        made: Sequence[Bound],
        strategies: Mapping[str, Communication],
        site: Site,
        router: Router,
    ) -> None:
        super().__init__()
        self.report = report
        self.router = router
        self.degradations = Counter()
        self._made, self._strategies = made, dict(strategies)
        binding = made[-1].binding
        self._hidden_size, self._dtype, self._rank = binding.hidden_size, binding.dtype, binding.groups.rank
        self._repeats = Repeats(site.balancer.repeat_count)
        self._schedulers = make_schedulers(made, self._strategies, router.forward, site)
        is_alone = report.deployment.world_size == 1 and site.balancer is NO_BALANCER
        by_identity = {bound.binding.candidate.identity: bound for bound in made}
        self._shortcut = Shortcut(report, by_identity, self._strategies, router) if is_alone else None
        make_callable(self)

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
        balancer: LayerBalancer = NO_BALANCER,
        unfinalized_combine: UnfinalizedCombine | None = None,
    ) -> Self:
        """The layer that `report` selected, and no other; on all ranks together where there are several.

        Args:
            weights: this rank's experts (all of them on a single rank), in the problem's activation type.
            router_bias: float32 correction bias ``[E]`` of the choice.
            routing_table: expert ids ``[vocabulary, K]`` of a hashed router.
            catalog: where the winner is looked up by identity; default: the installed plugins.
            device: default: the device of the report's environment.
            groups: this rank's place; needed when the report is for several ranks.
            balancer: this layer's load balancer; needed when the report is for one.
            unfinalized_combine: the model's own weighing and summing of expert outputs, for ``do_finalize=False``.

        Raises:
            UnresolvedError: the report has no winner.
            KeyError: no plugin here has the winner.
            BindError: report, weights and machine do not fit; with everything that does not.
            ValueError: the routing method, the activation or one of its constants is unknown.
        """
        if catalog is None:
            from moe_core.registry import load_catalog

            catalog = load_catalog()
        site = Site(catalog, device, groups, balancer, unfinalized_combine)
        for_backends, for_strategies = bindings_of(report, site)
        errors = _check_router(report, router_bias, routing_table)
        errors += check_unfinalized(site, for_backends, for_strategies)
        made = make_backends(for_backends, weights, errors)
        router = Router(make_route(report, site, made[-1].binding), router_bias, routing_table)
        # The last step, so that no failure can leave a strategy that other ranks wait for.
        strategies = make_strategies(for_strategies)
        try:
            return cls(report, made, strategies, site, router)
        except BaseException:
            destroy_all(strategies.values())
            raise

    @property
    def backend(self) -> MoEBackend:
        """The backend for the largest token bucket."""
        return self._made[-1].backend

    @property
    def strategies(self) -> tuple[Communication, ...]:
        """What exchanges tokens: to be put to sleep, say."""
        return tuple(self._strategies.values())

    def forward(
        self,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        input_ids: torch.Tensor | None = None,
        all_rank_num_tokens: Sequence[int] | None = None,
        *,
        hidden_states_sf: torch.Tensor | None = None,
        use_dp_padding: bool = False,
        is_padding: torch.Tensor | None = None,
        do_finalize: bool = True,
        lora_params: Any = None,
        input_ready_event: Event | None = None,
    ) -> torch.Tensor | UnfinalizedOutput:
        """The routed experts' sum per token, in the shape and element type of `hidden_states`.

        Under ``torch.compile`` this is one opaque operation, for inference.

        Args:
            hidden_states: ``[T, H]`` or ``[..., H]``; T may be zero.
            router_logits: ``[T, E]`` or ``[..., E]``, of any float type.
            input_ids: token ids ``[T]`` or ``[...]``, for a hashed router.
            all_rank_num_tokens: T of every rank, the same on every rank; needed when tokens are exchanged.
            hidden_states_sf: scales of `hidden_states` that are in the backend's quantized form already, row by row.
            use_dp_padding: every rank brings as many rows as the fullest; rows behind its own count are left out of
                the result.
            is_padding: bool ``[T]`` or ``[...]``, rows that are no tokens: what they give is undefined.
            do_finalize: False leaves weighing and summing to the model: to its ``unfinalized_combine`` where tokens
                are exchanged, else by returning what the experts left.
            lora_params: adapters of the routed experts.
            input_ready_event: what to wait for before `hidden_states` are read; routing does not wait.

        Raises:
            ValueError: the inputs fit neither the report nor each other.
            InfeasibleWorkloadError: no allowed strategy serves these tokens; on every rank.
            NotImplementedError: the backend cannot do what is asked for, or compiled code cannot.
            RuntimeError: gradients of compiled code are asked for.
        """
        if (
            self._shortcut is not None and all_rank_num_tokens is None and hidden_states_sf is None
            and is_padding is None and lora_params is None and input_ready_event is None
            and do_finalize and not use_dp_padding
        ):  # fmt: skip
            done = self._shortcut(hidden_states, router_logits, self._dtype)
            if done is not None:
                return done
        x_TH = self._rows_of(hidden_states, hidden_states_sf)
        logits_TE = _flat(router_logits)
        input_ids_T = None if input_ids is None else input_ids.reshape(-1)
        is_padding_T = None if is_padding is None else is_padding.reshape(-1)
        y_TH: torch.Tensor | UnfinalizedOutput
        if torch.compiler.is_compiling():
            _refuse_compiled(do_finalize, lora_params, input_ready_event)
            y_TH = run_opaque(
                self, x_TH, logits_TE, input_ids_T, all_rank_num_tokens,
                x_sf=hidden_states_sf, use_dp_padding=use_dp_padding, is_padding_T=is_padding_T,
            )  # fmt: skip
        else:
            counts = (x_TH.shape[0],) if all_rank_num_tokens is None else all_rank_num_tokens
            plan = plan_forward(self.report, counts, use_dp_padding=use_dp_padding)
            inputs = ForwardInputs(
                x=x_TH,
                router_logits=logits_TE,
                num_real=self._num_tokens(plan, x_TH.shape[0]),
                x_sf=hidden_states_sf,
                input_ids=input_ids_T,
                is_padding=is_padding_T,
                lora_params=lora_params,
                ready=NO_EVENT if input_ready_event is None else InputReady(input_ready_event),
            )
            y_TH = self._run(plan, inputs, do_finalize)
        if hidden_states.dim() == 2 or isinstance(y_TH, UnfinalizedOutput) or y_TH.shape[0] != x_TH.shape[0]:
            return y_TH
        return y_TH.view(*hidden_states.shape[:-1], self._hidden_size)

    def forward_fake(self, hidden_states: torch.Tensor, all_rank_num_tokens: Sequence[int] | None) -> torch.Tensor:
        """What :meth:`forward` gives for ``[T, H]``, with nothing in it: for compilers."""
        is_told = all_rank_num_tokens is not None and self.report.deployment.use_dp
        num_rows = all_rank_num_tokens[self._rank] if is_told and all_rank_num_tokens else hidden_states.shape[0]
        return hidden_states.new_empty((num_rows, self._hidden_size), dtype=self._dtype)

    def load_weights(self, weights: ExpertWeights) -> None:
        """Run with other weights from the next forward on, as :meth:`from_report` would; each rank brings its share.

        Backends that hold weights in memory of their own keep its addresses, so captured CUDA graphs stay valid.

        Raises:
            BindError: the weights do not fit, or a backend cannot take any again; nothing has changed then.
        """
        reload_backends(self._made, weights)

    def destroy(self) -> None:
        """Release what the layer holds; all ranks together. Calling it again does nothing."""
        destroy_all(self._strategies.values())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.destroy()

    def _run(self, plan: ForwardPlan, inputs: ForwardInputs, do_finalize: bool) -> torch.Tensor | UnfinalizedOutput:
        for step in plan.degradations:
            self._record(step)
        y_TH = self._schedulers[plan.backend].forward(plan, inputs, self._repeats.turn, do_finalize=do_finalize)
        self._repeats.advance()
        return y_TH

    def _rows_of(self, hidden_states: torch.Tensor, hidden_states_sf: torch.Tensor | None) -> torch.Tensor:
        if hidden_states_sf is not None:
            return _flat(hidden_states)
        if hidden_states.shape[-1] != self._hidden_size or hidden_states.dtype is not self._dtype:
            raise ValueError(
                f"hidden_states are {list(hidden_states.shape)} of {hidden_states.dtype}, needed "
                f"[..., {self._hidden_size}] of {self._dtype}"
            )
        return _flat(hidden_states)

    def _num_tokens(self, plan: ForwardPlan, num_rows: int) -> int:
        rank = self._rank if len(plan.num_tokens) > 1 else 0
        num_tokens, padded = plan.num_tokens[rank], plan.padded_tokens[rank]
        if num_rows not in (num_tokens, padded):
            raise ValueError(
                f"rank {self._rank} has {num_rows} rows, but all_rank_num_tokens says {num_tokens}"
                + (f", or {padded} with padding" if padded != num_tokens else "")
            )
        return num_tokens

    def _record(self, step: Degradation) -> None:
        self.degradations[step] += 1
        if self.degradations[step] == 1:
            warnings.warn(
                f"{step.source} gives way to {step.target}: {step.reason}; {step.hint}",
                MoEDegradationWarning,
                stacklevel=4,
            )


def _flat(rows: torch.Tensor) -> torch.Tensor:
    return rows if rows.dim() == 2 else rows.reshape(-1, rows.shape[-1])


def _refuse_compiled(do_finalize: bool, lora_params: Any, event: Event | None) -> None:
    given = {"do_finalize=False": not do_finalize, "lora_params": lora_params, "input_ready_event": event is not None}
    if refused := [name for name, is_given in given.items() if is_given]:
        raise NotImplementedError(
            f"compiled code cannot call the layer with {', '.join(refused)}; try: leave that call uncompiled"
        )


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
