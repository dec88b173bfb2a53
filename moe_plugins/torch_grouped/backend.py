"""Sort rows by expert, two grouped multiplications, weigh and sum. No host synchronization of its own."""

from __future__ import annotations

import torch

from moe_core.execution import Binding, MoERunContext
from moe_core.fused_weights import FusedExpertWeights
from moe_core.grouped import grouped_experts
from moe_core.weights import ExpertWeights


class GroupedMM:
    """Holds FC1 as one matrix per expert: fused weights as they came, separate ones as a copy.

    So load again after an update of separate weights; an update in place of fused ones is seen by the next call.
    """

    _weights: FusedExpertWeights

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self._copies: ExpertWeights | None = None

    def prepare(self, weights: ExpertWeights) -> None:
        """Copy `weights`, with gate and up joined; a second time into the same memory, which CUDA graphs may read."""
        if torch.is_grad_enabled() and any(t.requires_grad for t in weights.tensors().values()):
            self.prepare_fused(FusedExpertWeights.joined(weights))  # gradients reach them through the joining
        elif self._copies is not None and self._copies.tensors().keys() == weights.tensors().keys():
            self._copies.overwrite(weights)
        else:
            # Inference tensors could not be written to later, outside of that mode.
            with torch.inference_mode(False), torch.no_grad():
                self.prepare_fused(FusedExpertWeights.joined(weights))
            self._copies = self._weights.apart()

    def prepare_fused(self, weights: FusedExpertWeights) -> None:
        """Keep `weights`; nothing is copied."""
        self._weights, self._copies = weights, None

    def quantize_input(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        """`x` as it is."""
        return x, None

    def run_moe(self, context: MoERunContext) -> torch.Tensor:
        """The weighted sum of this rank's experts, ``[N, H]``."""
        binding = self._binding
        if not context.x.shape[0]:
            return context.x.new_zeros(0, binding.hidden_size)  # the kernels refuse the null pointer of no rows
        return grouped_experts(
            context.x,
            context.token_selected_slots,
            context.token_final_scales,
            self._weights,
            binding.activation,
            binding.slot_start,
        )
