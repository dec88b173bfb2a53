"""Routed experts in torch's grouped matrix multiplications, over rows sorted by expert; differentiable."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from moe_core.activation import Activation
from moe_core.fused_weights import FusedExpertWeights
from moe_core.permutation import ExpertOrder, order_by_expert, weighted_sum


def grouped_experts(
    x_TH: torch.Tensor,
    slots_TK: torch.Tensor,
    scales_TK: torch.Tensor,
    weights: FusedExpertWeights,
    activation: Activation,
    slot_start: int,
    between: torch.dtype | None = None,
) -> torch.Tensor:
    """The weighted sum of each row's experts, ``[T, H]`` in the element type of `x_TH`, T > 0.

    Biases and `activation` are computed in the element type `between`, default that of `x_TH`. There is no host
    synchronization but that of torch's operation.

    Gradients reach `x_TH`, `scales_TK` and `weights`, summed in float32 over whatever number of rows and experts. An id
    outside of the slots whose experts `weights` are, counted from `slot_start`, leaves no trace in output or gradients.
    Needs torch 2.10, and sizes H and I of whole 16-byte units.
    """
    between = between or x_TH.dtype
    order = order_by_expert(slots_TK, slot_start, slot_start + len(weights.w2_EHI))
    x_RH = _defined(_gathered(x_TH, order), order)
    h_RG = _defined(_project(x_RH, weights.fc1_EGH, weights.fc1_bias_EG, order, between), order)
    a_RI = activation(*weights.halves(h_RG)).to(x_TH.dtype)
    y_RH = _project(a_RI, weights.w2_EHI, weights.b2_EH, order, between)
    return weighted_sum(y_RH, order, scales_TK).to(x_TH.dtype)


def _gathered(x_TH: torch.Tensor, order: ExpertOrder) -> torch.Tensor:
    if not (torch.is_grad_enabled() and x_TH.requires_grad):
        return x_TH[order.token_R]
    # Going backward, an index adds up a token's rows in their own type, and an expanded tensor in float32.
    x_TKH = x_TH.unsqueeze(1).expand(*order.is_local_TK.shape, x_TH.shape[-1])
    return x_TKH.flatten(0, 1)[order.pair_R]


def _project(
    x_RK: torch.Tensor,
    weight_LNK: torch.Tensor,
    bias_LN: torch.Tensor | None,
    order: ExpertOrder,
    dtype: torch.dtype,
) -> torch.Tensor:
    # Rows past the last group come out undefined.
    y_RN = F.grouped_mm(x_RK, weight_LNK.transpose(-2, -1), offs=order.end_L).to(dtype)
    if bias_LN is None:
        return y_RN
    if torch.is_grad_enabled() and bias_LN.requires_grad:
        bias_LN = bias_LN.float()  # its gradient is a sum over all rows of an expert; the output is the same
    return (y_RN + bias_LN[order.slot_R.clamp(max=len(bias_LN) - 1)]).to(dtype)


def _defined(rows_RN: torch.Tensor, order: ExpertOrder) -> torch.Tensor:
    # Going forward, foreign rows are dropped at the end. Going backward, they would reach the gradients.
    if not torch.is_grad_enabled():
        return rows_RN
    return torch.where((order.slot_R < len(order.end_L)).unsqueeze(-1), rows_RN, 0.0)
