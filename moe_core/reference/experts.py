"""Routed experts by the book: one expert at a time, in float32."""

from __future__ import annotations

import torch
from torch.nn.functional import linear

from moe_core.activation import Activation
from moe_core.contract.problem import MoEProblem
from moe_core.quantization import Matrix, dequantized
from moe_core.weights import ExpertWeights


def reference_moe(
    problem: MoEProblem,
    x_TH: torch.Tensor,
    weights: ExpertWeights,
    ids_TK: torch.Tensor,
    weights_TK: torch.Tensor,
) -> torch.Tensor:
    """``y[t] = sum_k weights[t, k] * expert[ids[t, k]](x[t])``, float32 ``[T, H]``, from inputs of any float type.

    Quantized matrices are dequantized, an expert at a time. `x_TH` is not quantized whatever the format, and neither is
    the activation's output: the error of a backend that does so is part of the tolerance that it declares.
    Static scales of inputs change nothing here; a backend that saturates what they were not calibrated for departs.
    An id that names none of the experts of `weights` contributes exactly zero, whatever its row and weight hold.
    """
    activation = Activation.of(problem)
    y_TH = torch.zeros_like(x_TH, dtype=torch.float32)
    for expert in range(len(weights.w1_EIH)):
        is_chosen_TK = ids_TK == expert
        token_R = is_chosen_TK.any(dim=-1).nonzero().flatten()
        # A table of experts may name one twice for a token.
        weight_R1 = torch.where(is_chosen_TK, weights_TK, 0.0)[token_R].float().sum(dim=-1, keepdim=True)
        x_RH = x_TH[token_R].float()
        if problem.apply_router_weight_on_input:
            y_RH = _expert(x_RH * weight_R1, weights, expert, activation)
        else:
            y_RH = weight_R1 * _expert(x_RH, weights, expert, activation)
        y_TH = y_TH.index_add(0, token_R, y_RH)
    return y_TH


def _expert(x_RH: torch.Tensor, weights: ExpertWeights, expert: int, activation: Activation) -> torch.Tensor:
    def project(x: torch.Tensor, weight: Matrix, bias: torch.Tensor | None) -> torch.Tensor:
        return linear(x, dequantized(weight[expert], x.dtype), None if bias is None else bias[expert].float())

    gate_RI = project(x_RH, weights.w1_EIH, weights.b1_EI)
    up_RI = None if weights.w3_EIH is None else project(x_RH, weights.w3_EIH, weights.b3_EI)
    return project(activation(gate_RI, up_RI), weights.w2_EHI, weights.b2_EH)
