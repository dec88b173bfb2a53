"""Random experts for trials, tests and examples."""

from __future__ import annotations

from dataclasses import replace

import torch

from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import QuantAlgo
from moe_core.quantization import Matrix, quantize, weight_format
from moe_core.weights import ExpertWeights


def random_weights(
    problem: MoEProblem,
    *,
    seed: int = 0,
    scale: float | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
) -> ExpertWeights:
    """All experts of `problem`, normally distributed, the same for a seed on any device.

    A matrix has standard deviation `scale`; by default the inverse root of its input width, which keeps activations
    of order one. It is in `dtype`, or in the problem's format, AWQ's with zero points. Raises ``ValueError`` when the
    format or a size is unknown.
    """
    E, H, I = problem.num_experts, problem.hidden_size, problem.intermediate_size  # noqa: E741 - shape letters
    if E is None or H is None or I is None or problem.is_gated is None or problem.quant is None:
        raise ValueError("random weights need quant, num_experts, hidden_size, intermediate_size and activation")
    format_ = weight_format(problem.quant, problem.quant_group_size)
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        deviation = shape[-1] ** -0.5 if scale is None else scale
        return torch.randn(shape, generator=generator) * deviation

    def matrix(*shape: int) -> Matrix:
        drawn = draw(*shape)
        if format_ is None:
            return drawn.to(device=device, dtype=dtype)
        quantized = quantize(drawn, format_, zero_points=problem.quant is QuantAlgo.W4A16_AWQ)
        return quantized.map(lambda part: part.to(device=device))

    def bias(width: int) -> torch.Tensor | None:
        return draw(E, width).to(device=device, dtype=dtype) if problem.bias else None

    return ExpertWeights(
        w1_EIH=matrix(E, I, H),
        w2_EHI=matrix(E, H, I),
        w3_EIH=matrix(E, I, H) if problem.is_gated else None,
        b1_EI=bias(I),
        b3_EI=bias(I) if problem.is_gated else None,
        b2_EH=bias(H),
    )


def calibrated(weights: ExpertWeights, *, fc1_input: float = 0.0125, fc2_input: float = 0.0625) -> ExpertWeights:
    """`weights` in FP8 per tensor with static scales of their inputs; the defaults suit :func:`random_weights`.

    By default, inputs up to 5.6 do not saturate, and up to 28 where an activation gave them.
    """
    device = next(iter(weights.tensors().values())).device

    def scales(value: float) -> torch.Tensor:
        return torch.full((len(weights.w1_EIH),), value, device=device)

    return replace(weights, fc1_input_scale_E=scales(fc1_input), fc2_input_scale_E=scales(fc2_input))
