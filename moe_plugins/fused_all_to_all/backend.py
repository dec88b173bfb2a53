"""Dispatch, experts and combine in `run_moe`, over the process group of the layer's ranks."""

from __future__ import annotations

import torch

from moe_core.communication import Dispatched, RankExchange, Wire, joined, refuse_gradients
from moe_core.execution import BindError, Binding, MoERunContext
from moe_core.reference import reference_moe
from moe_core.weights import ExpertWeights


class FusedAllToAll:
    """Every rank calls `run_moe` as often as the others, without rows if it has none. Inference only."""

    _weights: ExpertWeights

    def __init__(self, binding: Binding) -> None:
        if binding.groups.group is None:
            raise BindError("FusedAllToAll needs the process group of the layer's ranks; give groups")
        self._binding = binding
        self._exchange = RankExchange(Wire(binding.groups.group), binding, fixed=binding.device.type == "cuda")

    def prepare(self, weights: ExpertWeights) -> None:
        """Keep `weights`; nothing is copied."""
        self._weights = weights

    def quantize_input(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        """`x` as it is."""
        return x, None

    def run_moe(self, context: MoERunContext) -> torch.Tensor:
        """The whole sum for this rank's own rows, ``[T, H]``; a collective."""
        refuse_gradients(type(self).__name__, context.x, context.token_final_scales)
        return joined(self._binding.groups.watch, "run_moe", self._run, context)

    def _run(self, context: MoERunContext) -> torch.Tensor:
        binding, most = self._binding, context.max_num_tokens
        assert most is not None, "a scheduler for kernels that exchange tokens says how many rows a rank may bring"
        own = Dispatched(context.x, context.x_sf, context.token_selected_slots, context.token_final_scales)
        rows = self._exchange.dispatch(own, most)
        local_NK = rows.token_selected_slots - binding.slot_start
        y_NH = reference_moe(binding.problem, rows.x, self._weights, local_NK, rows.token_final_scales)
        return self._exchange.combine(y_NH.to(binding.dtype))
