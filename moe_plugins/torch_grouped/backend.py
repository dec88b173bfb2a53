"""Sort rows by expert, two grouped multiplications, weigh and sum. No host synchronization of its own."""

from __future__ import annotations

import torch
from torch.nn.functional import grouped_mm

from moe_core.execution import Binding, MoERunContext
from moe_core.permutation import ExpertOrder, order_by_expert, weighted_sum
from moe_core.quantization import plain
from moe_core.weights import ExpertWeights


class GroupedMM:
    """Holds FC1 as one matrix per expert, gate above up: a copy, so load again after an update of the weights."""

    _fc1_LGH: torch.Tensor
    _fc1_bias_LG: torch.Tensor | None
    _fc2_LHI: torch.Tensor
    _fc2_bias_LH: torch.Tensor | None

    def __init__(self, binding: Binding) -> None:
        self._binding = binding

    def prepare(self, weights: ExpertWeights) -> None:
        """Join gate and up."""
        self._fc1_LGH = _joined(plain(weights.w1_EIH), None if weights.w3_EIH is None else plain(weights.w3_EIH))
        self._fc1_bias_LG = None if weights.b1_EI is None else _joined(weights.b1_EI, weights.b3_EI)
        self._fc2_LHI = plain(weights.w2_EHI)
        self._fc2_bias_LH = weights.b2_EH

    def quantize_input(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        """`x` as it is."""
        return x, None

    def run_moe(self, context: MoERunContext) -> torch.Tensor:
        """The weighted sum of this rank's experts, ``[N, H]``."""
        binding = self._binding
        if not context.x.shape[0]:
            return context.x.new_zeros(0, binding.hidden_size)  # the kernels refuse the null pointer of no rows
        order = order_by_expert(context.token_selected_slots, binding.slot_start, binding.slot_end)
        x_RH = _defined(context.x[order.token_R], order)
        h_RG = _defined(_project(x_RH, self._fc1_LGH, self._fc1_bias_LG, order), order)
        a_RI = binding.activation(*h_RG.chunk(2, dim=-1) if binding.activation.kind.is_gated else (h_RG,))
        y_RH = _project(a_RI, self._fc2_LHI, self._fc2_bias_LH, order)
        return weighted_sum(y_RH, order, context.token_final_scales).to(binding.dtype)


def _joined(gate: torch.Tensor, up: torch.Tensor | None) -> torch.Tensor:
    return gate if up is None else torch.cat([gate, up], dim=1)


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
