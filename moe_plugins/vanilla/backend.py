"""One expert after another, each over the rows that chose it."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch.nn.functional import linear

from moe_core.execution import Binding, MoERunContext
from moe_core.permutation import order_by_expert, weighted_sum
from moe_core.quantization import Matrix, dequantized
from moe_core.weights import ExpertWeights


class ReferenceLoop:
    """Holds the weights as they came: an update in place is seen by the next call, and gradients reach them."""

    _weights: ExpertWeights

    def __init__(self, binding: Binding) -> None:
        self._binding = binding

    def prepare(self, weights: ExpertWeights) -> None:
        """Keep `weights`; nothing is copied."""
        self._weights = weights

    def quantize_input(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        """`x` as it is."""
        return x, None

    def run_moe(self, context: MoERunContext) -> torch.Tensor:
        """The weighted sum of this rank's experts, ``[N, H]``; synchronizes with the device once."""
        binding, x_NH = self._binding, context.x
        order = order_by_expert(context.token_selected_slots, binding.slot_start, binding.slot_end)
        ends = order.end_L.tolist()
        parts = [
            self._expert(slot, x_NH[order.token_R[start:end]])
            for slot, (start, end) in enumerate(pairwise([0, *ends]))
            if end > start
        ]
        parts.append(x_NH.new_zeros(order.pair_R.numel() - ends[-1], binding.hidden_size))
        return weighted_sum(torch.cat(parts), order, context.token_final_scales).to(binding.dtype)

    def _expert(self, slot: int, x_RH: torch.Tensor) -> torch.Tensor:
        w = self._weights
        gate_RI = _project(x_RH, slot, w.w1_EIH, w.b1_EI)
        up_RI = None if w.w3_EIH is None else _project(x_RH, slot, w.w3_EIH, w.b3_EI)
        return _project(self._binding.activation(gate_RI, up_RI), slot, w.w2_EHI, w.b2_EH)


def _project(x_RK: torch.Tensor, slot: int, weight_LNK: Matrix, bias_LN: torch.Tensor | None) -> torch.Tensor:
    # Only the matrix at hand is dequantized: a whole layer would be several times the memory that was declared.
    return linear(x_RK, dequantized(weight_LNK[slot], x_RK.dtype), None if bias_LN is None else bias_LN[slot])
