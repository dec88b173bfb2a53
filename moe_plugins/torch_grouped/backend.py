"""Sort rows by expert, two grouped multiplications, weigh and sum. No host synchronization of its own."""

from __future__ import annotations

import torch
from torch.nn.functional import grouped_mm

from moe_core.execution import Binding, MoERunContext
from moe_core.fused_weights import FusedExpertWeights
from moe_core.permutation import ExpertOrder, order_by_expert, weighted_sum
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
        binding, weights = self._binding, self._weights
        if not context.x.shape[0]:
            return context.x.new_zeros(0, binding.hidden_size)  # the kernels refuse the null pointer of no rows
        order = order_by_expert(context.token_selected_slots, binding.slot_start, binding.slot_end)
        x_RH = _defined(context.x[order.token_R], order)
        h_RG = _defined(_project(x_RH, weights.fc1_EGH, weights.fc1_bias_EG, order), order)
        a_RI = binding.activation(*weights.halves(h_RG))
        y_RH = _project(a_RI, weights.w2_EHI, weights.b2_EH, order)
        return weighted_sum(y_RH, order, context.token_final_scales).to(binding.dtype)


def _project(
    x_RK: torch.Tensor, weight_LNK: torch.Tensor, bias_LN: torch.Tensor | None, order: ExpertOrder
) -> torch.Tensor:
    # Rows past the last group come out undefined.
    y_RN = grouped_mm(x_RK, weight_LNK.transpose(-2, -1), offs=order.end_L)
    if bias_LN is None:
        return y_RN
    return y_RN + bias_LN[order.slot_R.clamp(max=len(bias_LN) - 1)]


def _defined(rows_RN: torch.Tensor, order: ExpertOrder) -> torch.Tensor:
    # Going forward, foreign rows are dropped at the end. Going backward, they would reach the gradients.
    if not torch.is_grad_enabled():
        return rows_RN
    return torch.where((order.slot_R < len(order.end_L)).unsqueeze(-1), rows_RN, 0.0)
