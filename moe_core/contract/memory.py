"""Bytes of device memory that one layer's routed experts need on one rank: the floor, not a measurement."""

from __future__ import annotations

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import DType, QuantAlgo

# Bits of one weight element, and bits of the scale that one group shares.
_WEIGHT_BITS: dict[QuantAlgo, tuple[int, int]] = {
    QuantAlgo.FP8: (8, 0),
    QuantAlgo.FP8_PER_CHANNEL_PER_TOKEN: (8, 0),
    QuantAlgo.FP8_BLOCK_SCALES: (8, 0),
    QuantAlgo.NVFP4: (4, 8),
    QuantAlgo.W4A16_NVFP4: (4, 8),
    QuantAlgo.W4A8_NVFP4_FP8: (4, 8),
    QuantAlgo.W4A16_MXFP4: (4, 8),
    QuantAlgo.W4A8_MXFP4_FP8: (4, 8),
    QuantAlgo.W4A8_MXFP4_MXFP8: (4, 8),
    QuantAlgo.MXFP8: (8, 8),
    QuantAlgo.W8A8_SQ: (8, 0),
    QuantAlgo.W8A16: (8, 0),
    QuantAlgo.W4A16: (4, 0),
    QuantAlgo.W4A16_AWQ: (4, 16),
    QuantAlgo.W4A16_GPTQ: (4, 16),
    QuantAlgo.W4A8_AWQ: (4, 16),
    QuantAlgo.W4A8_CUSTOM: (4, 16),
}

DEFAULT_GROUP_SIZE: dict[QuantAlgo, int] = {
    QuantAlgo.FP8_BLOCK_SCALES: 128,
    QuantAlgo.NVFP4: 16,
    QuantAlgo.W4A16_NVFP4: 16,
    QuantAlgo.W4A8_NVFP4_FP8: 32,
    QuantAlgo.W4A16_MXFP4: 32,
    QuantAlgo.W4A8_MXFP4_FP8: 32,
    QuantAlgo.W4A8_MXFP4_MXFP8: 32,
    QuantAlgo.MXFP8: 32,
    QuantAlgo.W4A16_AWQ: 128,
    QuantAlgo.W4A16_GPTQ: 128,
    QuantAlgo.W4A8_AWQ: 128,
    QuantAlgo.W4A8_CUSTOM: 128,
}
"""Elements per scale along the contraction dimension, where the format fixes or customarily sets it."""


def bits_per_weight(quant: QuantAlgo, dtype: DType, group_size: int | None = None) -> float:
    """Average bits of one stored weight with its share of the scales (4.25 for MXFP4)."""
    if quant is QuantAlgo.NONE:
        return 8.0 * dtype.num_bytes
    bits, scale_bits = _WEIGHT_BITS[quant]
    group = group_size or DEFAULT_GROUP_SIZE.get(quant)
    return bits + (scale_bits / group if group else 0.0)


def weight_bytes_per_rank(problem: MoEProblem, deployment: MoEDeployment) -> int | None:
    """Bytes of this layer's routed experts on the fullest rank; ``None`` when a size is unknown."""
    if (
        problem.quant is None
        or problem.hidden_size is None
        or problem.intermediate_size is None
        or problem.num_experts is None
        or problem.is_gated is None
    ):
        return None
    slots = deployment.num_slots or problem.num_experts
    local = -(-slots // deployment.ep_size)
    shard = -(-problem.intermediate_size // deployment.tp_size)
    projections = 3 if problem.is_gated else 2
    bits = bits_per_weight(problem.quant, problem.dtype_act or DType.BFLOAT16, problem.quant_group_size)
    return int(local * projections * problem.hidden_size * shard * bits / 8)


def workspace_bytes(problem: MoEProblem, deployment: MoEDeployment) -> int | None:
    """Bytes of one chunk's activations on a rank at the declared token limit; ``None`` when a size is unknown.

    Counts the gathered rows, FC1's output, the activation and FC2's output in the activation's element type.
    """
    tokens = deployment.moe_max_num_tokens or deployment.max_num_tokens
    if (
        tokens is None
        or problem.hidden_size is None
        or problem.intermediate_size is None
        or problem.top_k is None
        or problem.is_gated is None
    ):
        return None
    shard = -(-problem.intermediate_size // deployment.tp_size)
    columns = 2 * problem.hidden_size + shard * (3 if problem.is_gated else 2)
    return tokens * problem.top_k * columns * (problem.dtype_act or DType.BFLOAT16).num_bytes


def memory_needed(problem: MoEProblem, deployment: MoEDeployment) -> int | None:
    """Bytes needed on a rank: weights, workspace where known, and what others hold."""
    weights = weight_bytes_per_rank(problem, deployment)
    if weights is None:
        return None
    return weights + (workspace_bytes(problem, deployment) or 0) + deployment.reserved_memory
