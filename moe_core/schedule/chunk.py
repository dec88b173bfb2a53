"""One chunk whose tokens a strategy moves: every step, in the one order in which they may come."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch

from moe_core.communication import Communication, Dispatched
from moe_core.communication.base import Phase
from moe_core.contract.plan import ForwardPlan, QuantizeOrder
from moe_core.contract.vocabulary import RoutingSplit
from moe_core.execution import MoERunContext
from moe_core.schedule.abilities import LeavesUnfinalized, RoutesInKernel, UnfinalizedOutput
from moe_core.schedule.balancer import NO_BALANCER
from moe_core.schedule.inputs import ForwardInputs, Turn
from moe_core.schedule.parts import LayerParts
from moe_core.schedule.routing_step import Routed, RoutingStep, without_padding
from moe_core.schedule.unfinalized import combine_unfinalized


class Call(NamedTuple):
    """One chunk on its way."""

    plan: ForwardPlan
    comm: Communication
    sizes: tuple[int, ...]
    inputs: ForwardInputs
    turn: Turn
    do_finalize: bool
    workspace: Any

    @property
    def is_local(self) -> bool:
        """Whether no row leaves this rank."""
        return self.plan.quantize is QuantizeOrder.LOCAL


class ChunkRunner:
    """Runs chunks; what does not change between them is decided when it is made."""

    def __init__(self, parts: LayerParts) -> None:
        self._parts = parts
        candidate, backend = parts.binding.candidate, parts.backend
        self._route = RoutingStep(parts)
        self._trims = candidate.capabilities.supports_graph_padding_trim
        self._sanitizes = candidate.input_requirement.requires_sanitized_expert_ids
        in_kernel = candidate.routing_split is not RoutingSplit.SEPARATED and parts.balancer is NO_BALANCER
        self._run_from_logits = backend.run_from_logits if in_kernel and isinstance(backend, RoutesInKernel) else None
        self._is_balanced = parts.balancer is not NO_BALANCER
        self._has_warned = False

    def run(self, call: Call) -> torch.Tensor | UnfinalizedOutput:
        """This rank's rows of the chunk; what the experts left, where nothing is exchanged and nothing finalized."""
        if self._run_from_logits is not None and call.is_local and call.do_finalize:
            return self._in_kernel(call)
        if not self._is_balanced and call.comm.moves_nothing and call.comm.phase is Phase.IDLE:
            return self._alone(call)
        balancer, turn = self._parts.balancer, call.turn
        balancer.start_wait_gpu(turn.is_first)
        routed = self._route(call.inputs, may_quantize=call.plan.quantize is not QuantizeOrder.AFTER_DISPATCH)
        slots = self._slots(call, routed.ids)
        rows = self._dispatched(call, routed, slots)
        y = self._experts(call, rows)
        balancer.start_set_cpu(turn.is_last)
        finished = self._combined(call, y, rows)
        balancer.done_set_cpu(turn.is_last)
        return finished

    def no_rows(self, x: torch.Tensor) -> torch.Tensor:
        """``[0, H]`` for no rows of `x`."""
        binding = self._parts.binding
        # The copy keeps the graph: a rank without tokens has gradients too.
        return x.clone() if x.dtype is binding.dtype else x.new_zeros((0, binding.hidden_size), dtype=binding.dtype)

    def _in_kernel(self, call: Call) -> torch.Tensor:
        assert self._run_from_logits is not None  # run has seen to it
        inputs = call.inputs
        inputs.ready.wait()
        x, x_sf = (inputs.x, inputs.x_sf) if inputs.x_sf is not None else self._parts.backend.quantize_input(inputs.x)
        nobody = inputs.router_logits.new_empty(0, 0)
        call.comm.dispatch(x, x_sf, nobody, nobody, call.sizes)
        return call.comm.combine(self._run_from_logits(x, x_sf, inputs.router_logits))

    def _alone(self, call: Call) -> torch.Tensor | UnfinalizedOutput:
        """The same on one rank that nobody balances, for less of the host's time."""
        inputs = call.inputs
        routed = self._route(inputs, may_quantize=True)
        slots = routed.ids
        if self._trims and call.comm.supports_graph_padding_trim:
            slots = without_padding(slots, inputs)
        elif inputs.is_padding is not None:
            self._warn_of_padding(call.comm)
        x, x_sf = routed.x, routed.x_sf
        inputs.ready.wait()
        if not routed.is_quantized:
            x, x_sf = self._parts.backend.quantize_input(x)
        return self._experts(call, Dispatched(x, x_sf, slots, routed.scales))

    def _slots(self, call: Call, ids: torch.Tensor) -> torch.Tensor:
        balancer, turn = self._parts.balancer, call.turn
        trims = self._trims and call.comm.supports_graph_padding_trim
        if trims:
            ids = without_padding(ids, call.inputs)
        elif call.inputs.is_padding is not None:
            self._warn_of_padding(call.comm)
        balancer.done_wait_gpu(turn.is_first)
        balancer.update_statistic(
            ids, is_first=turn.is_first, is_last=turn.is_last, ignore_allreduce=call.comm.gathers_statistics
        )
        slots = balancer.route(ids, self._parts.binding.deployment.use_dp)
        # To a balancer -1 is an expert that does not exist: it may become any slot that does not exist.
        return without_padding(slots, call.inputs) if trims and slots is not ids else slots

    def _dispatched(self, call: Call, routed: Routed, slots: torch.Tensor) -> Dispatched:
        backend, balancer, comm = self._parts.backend, self._parts.balancer, call.comm
        statistic = balancer.local_statistic() if comm.gathers_statistics and call.turn.is_last else None
        comm.prepare_dispatch(statistic)
        x, x_sf, is_quantized = routed.x, routed.x_sf, routed.is_quantized
        call.inputs.ready.wait()
        if not is_quantized and call.plan.quantize is not QuantizeOrder.AFTER_DISPATCH:
            x, x_sf = backend.quantize_input(x)
            is_quantized = True
        rows = comm.dispatch(x, x_sf, slots, routed.scales, call.sizes)
        if statistic is not None:
            balancer.update_gathered_statistic(comm.gathered_statistic())
        if not is_quantized:
            x, x_sf = backend.quantize_input(rows.x)
            rows = rows._replace(x=x, x_sf=x_sf)
        return rows

    def _experts(self, call: Call, rows: Dispatched) -> torch.Tensor | UnfinalizedOutput:
        binding, backend = self._parts.binding, self._parts.backend
        if not rows.x.shape[0]:
            return self.no_rows(rows.x)  # kernels refuse the null pointer of an empty tensor
        slots = rows.token_selected_slots
        if self._sanitizes:
            slots = torch.where((slots >= binding.slot_start) & (slots < binding.slot_end), slots, -1)
        context = MoERunContext(
            x=rows.x,
            token_selected_slots=slots,
            token_final_scales=rows.token_final_scales,
            x_sf=rows.x_sf,
            lora_params=call.inputs.lora_params,
            workspace=call.workspace,
        )
        if call.do_finalize:
            return backend.run_moe(context)
        assert isinstance(backend, LeavesUnfinalized)  # the scheduler has seen to it
        return backend.run_unfinalized(context)

    def _combined(
        self, call: Call, y: torch.Tensor | UnfinalizedOutput, rows: Dispatched
    ) -> torch.Tensor | UnfinalizedOutput:
        if isinstance(y, UnfinalizedOutput):
            if call.is_local:
                call.comm.reset()  # no row was moved: the model sums, over experts and over ranks
                return y
            y = combine_unfinalized(self._parts.unfinalized_combine, y, rows.token_final_scales)
            y = y.to(self._parts.binding.dtype)
        return call.comm.combine(y)

    def _warn_of_padding(self, comm: Communication) -> None:
        if not self._has_warned:
            self._has_warned = True
            both = f"{self._parts.binding.candidate.identity} with {type(comm).__name__}"
            warnings.warn(f"{both} computes rows that are marked as padding: it cannot leave them out", stacklevel=2)
