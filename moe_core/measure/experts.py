"""Random experts, made on the device: full-size layers within seconds, the same for a seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import DType, QuantAlgo
from moe_core.execution import TORCH_DTYPE
from moe_core.fused_weights import FusedExpertWeights
from moe_core.quantization import Element, Format, Matrix, QuantizedTensor, ScaleType, dequantized, weight_format
from moe_core.quantization.elements import MIDDLE, encode, to_e4m3
from moe_core.quantization.mx import BIAS
from moe_core.weights import ExpertWeights

Experts: TypeAlias = FusedExpertWeights | ExpertWeights
"""Gate and up in one matrix where experts are not quantized, which candidates may keep; else as a checkpoint has them.
"""

SIGMAS = 3
"""Standard deviations that the largest code stands for: as in a group of some hundred normal weights."""
AT_ONCE = 2**26
"""Elements that are drawn before they are rounded to codes: the scratch memory is a few times as many floats."""
BLOCK_SCALE = 256
"""Middle of e4m3 block scales, so that none is subnormal."""


def random_experts(problem: MoEProblem, device: torch.device, seed: int) -> Experts:
    """Normal weights whose standard deviation is the inverse root of their input width.

    Quantized ones are codes of normal values, never NaN, with scales that differ by up to a quarter, and with zero
    points in AWQ's format. Raises ``ValueError`` when the format or a size is unknown.
    """
    E, H, I, gated = problem.num_experts, problem.hidden_size, problem.intermediate_size, problem.is_gated  # noqa: E741
    if E is None or H is None or I is None or gated is None or problem.quant is None:
        raise ValueError("random experts need quant, num_experts, hidden_size, intermediate_size and activation")
    generator = torch.Generator(device).manual_seed(seed)
    dtype = TORCH_DTYPE[problem.dtype_act or DType.BFLOAT16]
    format_ = weight_format(problem.quant, problem.quant_group_size)

    def normal(*shape: int) -> torch.Tensor:
        made = torch.empty(shape, device=device, dtype=dtype)
        return made.normal_(std=shape[-1] ** -0.5, generator=generator)

    if format_ is None:
        G = 2 * I if gated else I
        return FusedExpertWeights(
            fc1_EGH=normal(E, G, H),
            w2_EHI=normal(E, H, I),
            fc1_bias_EG=normal(E, G) if problem.bias else None,
            b2_EH=normal(E, H) if problem.bias else None,
            gated=gated,
        )
    drawn = _Codes(format_, dtype, generator, zero_points=problem.quant is QuantAlgo.W4A16_AWQ)
    return ExpertWeights(
        w1_EIH=drawn.matrix(E, I, H),
        w2_EHI=drawn.matrix(E, H, I),
        w3_EIH=drawn.matrix(E, I, H) if gated else None,
        b1_EI=normal(E, I) if problem.bias else None,
        b3_EI=normal(E, I) if problem.bias and gated else None,
        b2_EH=normal(E, H) if problem.bias else None,
    )


def apart(experts: Experts) -> ExpertWeights:
    """`experts` with gate and up apart; nothing is copied."""
    return experts.apart() if isinstance(experts, FusedExpertWeights) else experts


def num_bytes(experts: Experts) -> int:
    """Memory of all tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in experts.tensors().values())


def dequantized_experts(experts: ExpertWeights, dtype: torch.dtype) -> FusedExpertWeights:
    """The values of quantized `experts` in `dtype`, with gate above up; scratch memory is that of one expert."""
    w1, w2, w3 = experts.w1_EIH, experts.w2_EHI, experts.w3_EIH
    biases = [bias.to(dtype) for bias in (experts.b1_EI, experts.b3_EI) if bias is not None]
    return FusedExpertWeights(
        fc1_EGH=_plain([w1] if w3 is None else [w1, w3], dtype),
        w2_EHI=_plain([w2], dtype),
        fc1_bias_EG=torch.cat(biases, dim=1) if biases else None,
        b2_EH=None if experts.b2_EH is None else experts.b2_EH.to(dtype),
        gated=w3 is not None,
    )


def _plain(parts: Sequence[Matrix], dtype: torch.dtype) -> torch.Tensor:
    """The rows of `parts`, ``[E, N, K]`` each, below each other."""
    experts, rows, columns = parts[0].shape
    made = torch.empty(experts, len(parts), rows, columns, dtype=dtype, device=_device(parts[0]))
    for expert in range(experts):
        for place, part in enumerate(parts):
            made[expert, place] = dequantized(part[expert], dtype)
    return made.flatten(1, 2)


def _device(matrix: Matrix) -> torch.device:
    return matrix.data.device


class _Codes:
    """Draws matrices in a format."""

    def __init__(self, format_: Format, dtype: torch.dtype, generator: torch.Generator, *, zero_points: bool) -> None:
        self._format, self._generator, self._zero_points = format_, generator, zero_points
        # As in checkpoints, whose scales of integers are in the type of the activations.
        self._scale_dtype = torch.float32 if format_.element is Element.E4M3 else dtype

    def matrix(self, *shape: int) -> QuantizedTensor:
        """``[E, N, K]``"""
        format_, device = self._format, self._generator.device
        parts = format_.parts(shape)
        largest = format_.element.largest
        data = torch.empty(parts["data"].shape, dtype=parts["data"].dtype, device=device)
        for codes in torch.split(data, max(AT_ONCE // (shape[1] * shape[2]), 1)):
            values = torch.empty(len(codes), *shape[1:], device=device)
            codes.copy_(encode(format_.element, values.normal_(std=largest / SIGMAS, generator=self._generator)))
        of_one = shape[-1] ** -0.5 * SIGMAS / largest
        factor = torch.rand(parts["scale"].shape, generator=self._generator, device=device) / 2 + 0.75
        zero = None
        if self._zero_points:
            zero = torch.randint(
                MIDDLE - 1, MIDDLE + 2, factor.shape, generator=self._generator, device=device, dtype=torch.uint8
            )
        return QuantizedTensor(format_, data, *self._scales(factor, of_one), zero)

    def _scales(self, factor: torch.Tensor, of_one: float) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Of blocks, about `of_one` times `factor`, and of matrices."""
        match self._format.scale:
            case ScaleType.E4M3:
                of_matrix = factor.new_full((len(factor), 1, 1), of_one / BLOCK_SCALE)
                return to_e4m3(factor * BLOCK_SCALE), of_matrix
            case ScaleType.UE8M0:
                exponent = (factor * of_one).log2().round()
                return (exponent + BIAS).to(torch.uint8).view(torch.float8_e8m0fnu), None
            case _:
                return (factor * of_one).to(self._scale_dtype), None
