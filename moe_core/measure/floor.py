"""The time under which no kernel can compute a layer's experts here: bytes over bandwidth, or operations over rate.

Pure arithmetic on declared figures; needs no torch. Letters: T tokens, E experts, K per token, H hidden size, I
intermediate size, M matrices of an expert (3 with a gate, else 2).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from moe_core.contract.base import Frozen
from moe_core.contract.memory import bits_per_weight
from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import DType, QuantAlgo

Positive = Annotated[float, Field(gt=0)]

_FP8_ARITHMETIC = frozenset(
    {
        QuantAlgo.FP8, QuantAlgo.FP8_PER_CHANNEL_PER_TOKEN, QuantAlgo.FP8_BLOCK_SCALES, QuantAlgo.MXFP8,
        QuantAlgo.W4A8_NVFP4_FP8, QuantAlgo.W4A8_MXFP4_FP8, QuantAlgo.W4A8_MXFP4_MXFP8,
        QuantAlgo.W4A8_AWQ, QuantAlgo.W4A8_CUSTOM,
    }
)  # fmt: skip
"""Formats whose activations are eight bits wide, so that FP8 units may multiply."""


class Ceilings(Frozen):
    """What a machine does at best."""

    source: str
    """Where the figures are from."""
    read_gb_s: Positive
    """Bandwidth of reading device memory, 10^9 bytes a second."""
    copy_gb_s: Positive | None = None
    """Bandwidth of a copy, bytes read and written together."""
    bf16_tflop_s: Positive
    """Dense matrix product of bfloat16 with random data."""
    fp8_tflop_s: Positive | None = None

    def tflop_s(self, quant: QuantAlgo) -> float:
        """Rate of the arithmetic that weights in format `quant` allow; bfloat16's where none faster is known."""
        return self.fp8_tflop_s or self.bf16_tflop_s if quant in _FP8_ARITHMETIC else self.bf16_tflop_s


CEILINGS = {
    "NVIDIA H200": Ceilings(
        source="measured on NVIDIA H200s: the best of several runs",
        read_gb_s=4430,
        copy_gb_s=4251,
        bf16_tflop_s=790,
        fp8_tflop_s=1368,
    ),
}
"""By device name. The arithmetic of one card moves by a tenth between minutes, with its temperature."""


class Bound(StrEnum):
    """What the floor is made of."""

    BYTES = "bytes"
    FLOPS = "flops"


class Floor(Frozen):
    """The least time of the routed experts, ids and weights given."""

    experts: Positive
    """Different experts that are read: counted, or expected."""
    weight_bytes: Positive
    activation_bytes: Positive
    flop: Positive
    microseconds: Positive
    bound: Bound


def expected_experts(num_experts: int, top_k: int, tokens: int) -> float:
    """Different experts that `tokens` choose together, each `top_k` at random: ``E (1 - (1 - K/E)^T)``."""
    return num_experts * (1 - (1 - top_k / num_experts) ** tokens)


def floor_of(
    problem: MoEProblem,
    tokens: int,
    ceilings: Ceilings,
    *,
    experts: float | None = None,
    separate_reduction: bool = False,
) -> Floor:
    """The floor of `tokens` rows, of which each weight is read once, and each activation once written and once read.

    Counted are the matrices of `experts` (default: as many as uniform routing is expected to choose), input and output
    ``2 T H``, and what lies between the projections ``2 T K I``. A kernel of its own for the weighted sum writes and
    reads ``2 T K H`` more, which is counted with `separate_reduction`. Operations are ``2 M T K H I``. No padding.

    Raises ``ValueError`` when the problem's sizes, format or element type are unknown.
    """
    E, K, H, I, quant, dtype, gated = _known(problem)  # noqa: E741 - shape letters
    touched = expected_experts(E, K, tokens) if experts is None else experts
    matrices = 3 if gated else 2
    weight_bytes = touched * matrices * H * I * bits_per_weight(quant, dtype, problem.quant_group_size) / 8
    elements = 2 * tokens * H + 2 * tokens * K * I + (2 * tokens * K * H if separate_reduction else 0)
    activation_bytes = float(elements * dtype.num_bytes)
    flop = 2.0 * matrices * tokens * K * H * I
    by_bytes = (weight_bytes + activation_bytes) / (ceilings.read_gb_s * 1e3)
    by_flops = flop / (ceilings.tflop_s(quant) * 1e6)
    return Floor(
        experts=touched,
        weight_bytes=weight_bytes,
        activation_bytes=activation_bytes,
        flop=flop,
        microseconds=max(by_bytes, by_flops),
        bound=Bound.BYTES if by_bytes >= by_flops else Bound.FLOPS,
    )


def _known(problem: MoEProblem) -> tuple[int, int, int, int, QuantAlgo, DType, bool]:
    E, K, H, I = problem.num_experts, problem.top_k, problem.hidden_size, problem.intermediate_size  # noqa: E741
    quant, dtype, gated = problem.quant, problem.dtype_act, problem.is_gated
    if E is None or K is None or H is None or I is None or quant is None or dtype is None or gated is None:
        raise ValueError("a floor needs num_experts, top_k, hidden_size, intermediate_size, quant, dtype, activation")
    return E, K, H, I, quant, dtype, gated
