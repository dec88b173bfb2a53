"""Random experts for trials, tests and examples."""

from __future__ import annotations

import torch

from moe_core.contract.problem import MoEProblem
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
    of order one. Raises ``ValueError`` when a size is unknown.
    """
    E, H, I = problem.num_experts, problem.hidden_size, problem.intermediate_size  # noqa: E741 - shape letters
    if E is None or H is None or I is None or problem.is_gated is None:
        raise ValueError("random weights need num_experts, hidden_size, intermediate_size and activation")
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        deviation = shape[-1] ** -0.5 if scale is None else scale
        return (torch.randn(shape, generator=generator) * deviation).to(device=device, dtype=dtype)

    def bias(width: int) -> torch.Tensor | None:
        return draw(E, width) if problem.bias else None

    return ExpertWeights(
        w1_EIH=draw(E, I, H),
        w2_EHI=draw(E, H, I),
        w3_EIH=draw(E, I, H) if problem.is_gated else None,
        b1_EI=bias(I),
        b3_EI=bias(I) if problem.is_gated else None,
        b2_EH=bias(H),
    )
