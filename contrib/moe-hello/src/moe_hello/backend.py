"""Every expert computes every token; whatever was not chosen is left out of the sum.

Suffixes: N rows, K ids per row, E experts of this rank, H hidden size, I intermediate size.
"""

from __future__ import annotations

import torch

from moe_core.execution import Binding, MoERunContext
from moe_core.quantization import Matrix, plain
from moe_core.weights import ExpertWeights


class DenseExperts:
    """Three batched multiplications: no sorting, no host synchronization, the same work whatever was routed."""

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self._slots_E = torch.arange(binding.slot_start, binding.slot_end, dtype=torch.int32, device=binding.device)

    def prepare(self, weights: ExpertWeights) -> None:
        """Keep `weights`; nothing is copied."""
        self._weights = weights

    def quantize_input(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        """`x` as it is."""
        return x, None

    def run_moe(self, context: MoERunContext) -> torch.Tensor:
        """The weighted sum of this rank's experts per row: ``[N, H]`` in the binding's element type."""
        w = self._weights
        is_chosen_NKE = context.token_selected_slots.unsqueeze(-1) == self._slots_E
        scale_NE = torch.where(is_chosen_NKE, context.token_final_scales.unsqueeze(-1), 0.0).sum(dim=1)
        is_chosen_NE = is_chosen_NKE.any(dim=1)
        # Rows of other ranks may hold anything, NaN included.
        x_NH = torch.where(is_chosen_NE.any(dim=1, keepdim=True), context.x, 0.0)
        x_ENH = x_NH.expand(len(self._slots_E), -1, -1)

        gate_ENI = _project(x_ENH, w.w1_EIH, w.b1_EI).float()
        up_ENI = None if w.w3_EIH is None else _project(x_ENH, w.w3_EIH, w.b3_EI).float()
        a_ENI = self._binding.activation(gate_ENI, up_ENI).to(x_NH.dtype)  # rounded once
        y_ENH = _project(a_ENI, w.w2_EHI, w.b2_EH)

        # What was not chosen may have overflowed, and zero times infinity is NaN: it is left out, not multiplied away.
        y_ENH = torch.where(is_chosen_NE.T.unsqueeze(-1), y_ENH.float(), 0.0)
        return torch.einsum("ne,enh->nh", scale_NE.float(), y_ENH).to(self._binding.dtype)


def _project(x_ENI: torch.Tensor, matrix_EOI: Matrix, bias_EO: torch.Tensor | None) -> torch.Tensor:
    weight_EIO = plain(matrix_EOI).mT
    if bias_EO is None:
        return torch.bmm(x_ENI, weight_EIO)
    return torch.baddbmm(bias_EO.unsqueeze(1), x_ENI, weight_EIO)  # the bias is added before rounding
