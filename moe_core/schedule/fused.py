"""The backend moves tokens itself: every rank launches every chunk, and padding never reaches the kernel."""

from __future__ import annotations

import torch

from moe_core.contract.plan import ForwardPlan
from moe_core.execution import BindError, MoERunContext
from moe_core.schedule.balancer import pass_by
from moe_core.schedule.inputs import ONLY, ForwardInputs, Turn
from moe_core.schedule.parts import LayerParts
from moe_core.schedule.routing_step import RoutingStep, without_padding


class FusedCommMoEScheduler:
    """Routing and one kernel per chunk. No strategy, no overlap, nothing left unfinalized."""

    def __init__(self, parts: LayerParts) -> None:
        if parts.binding.problem.apply_router_weight_on_input:
            raise BindError(f"{parts.binding.candidate.identity} takes no rows that are multiplied by router weights")
        self._parts = parts
        self._route = RoutingStep(parts)
        self._trims = parts.binding.candidate.capabilities.supports_graph_padding_trim

    def forward(
        self, plan: ForwardPlan, inputs: ForwardInputs, turn: Turn = ONLY, *, do_finalize: bool = True
    ) -> torch.Tensor:
        """This rank's tokens ``[num_tokens, H]``."""
        self._refuse(inputs, do_finalize)
        binding = self._parts.binding
        inputs = inputs.rows(0, inputs.num_real)
        if not plan.chunks:
            pass_by(self._parts.balancer, self._nobody(inputs), is_first=turn.is_first, is_last=turn.is_last)
            return inputs.x.new_zeros(0, binding.hidden_size)
        rank = binding.groups.rank if len(plan.num_tokens) > 1 else 0
        outputs = [
            self._chunk(rows, turn.of_chunk(index, len(plan.chunks)), max(plan.chunks[index].sizes))
            for index, rows in enumerate(inputs.chunks(plan.chunks, rank))
        ]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _chunk(self, inputs: ForwardInputs, turn: Turn, most: int) -> torch.Tensor:
        backend, balancer = self._parts.backend, self._parts.balancer
        balancer.start_wait_gpu(turn.is_first)
        ids, scales = self._routes(inputs)
        balancer.done_wait_gpu(turn.is_first)
        balancer.update_statistic(ids, is_first=turn.is_first, is_last=turn.is_last, ignore_allreduce=False)
        slots = balancer.route(ids, self._parts.binding.deployment.use_dp)
        if self._trims and slots is not ids:
            slots = without_padding(slots, inputs)
        inputs.ready.wait()
        x, x_sf = backend.quantize_input(inputs.x)
        y = backend.run_moe(MoERunContext(x, slots, scales, x_sf, max_num_tokens=most))
        # Strictly after the kernel: weights that move while it runs would be read half old, half new.
        balancer.start_set_cpu(turn.is_last)
        balancer.done_set_cpu(turn.is_last)
        return y

    def _routes(self, inputs: ForwardInputs) -> tuple[torch.Tensor, torch.Tensor]:
        if not inputs.num_rows:
            nobody = self._nobody(inputs)
            return nobody, nobody.float()
        routed = self._route(inputs, may_quantize=False)
        ids = without_padding(routed.ids, inputs) if self._trims else routed.ids
        return ids, routed.scales.float()

    def _nobody(self, inputs: ForwardInputs) -> torch.Tensor:
        return torch.empty(0, self._parts.binding.problem.top_k or 0, dtype=torch.int32, device=inputs.x.device)

    def _refuse(self, inputs: ForwardInputs, do_finalize: bool) -> None:
        identity = self._parts.binding.candidate.identity
        if inputs.lora_params:
            raise NotImplementedError(f"{identity} exchanges tokens in its kernel and runs no LoRA")
        if inputs.x_sf is not None:
            raise NotImplementedError(f"{identity} quantizes rows itself; give hidden_states unquantized")
        if not do_finalize:
            raise NotImplementedError(f"do_finalize=False: {identity} sums inside its kernel")
