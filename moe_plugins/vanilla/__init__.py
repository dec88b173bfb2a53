"""The reference loop: one expert after another in plain torch. Runs everywhere, is fast nowhere, never degrades."""

from moe_core.contract.candidate import MoEActivationSupport, MoECandidate, MoEStaticCapability
from moe_core.contract.declare import (
    Equals,
    Reason,
    divisible,
    dtype_in,
    need,
    no_smart_router,
    one_of,
    quant_in,
)
from moe_core.contract.requirement import Requirement
from moe_core.contract.vocabulary import ActivationType, CandidateKind, DType, QuantAlgo, TokenLayout

GROUPS_OF_16 = (QuantAlgo.NVFP4, QuantAlgo.W4A16_NVFP4)
MXFP4 = (QuantAlgo.W4A16_MXFP4, QuantAlgo.W4A8_MXFP4_FP8, QuantAlgo.W4A8_MXFP4_MXFP8)
GROUPS_OF_32 = (QuantAlgo.W4A8_NVFP4_FP8, QuantAlgo.MXFP8, *MXFP4)
INTEGER_GROUPS = (QuantAlgo.W4A16_AWQ, QuantAlgo.W4A16_GPTQ, QuantAlgo.W4A8_AWQ, QuantAlgo.W4A8_CUSTOM)
FOUR_BITS = (*GROUPS_OF_16, QuantAlgo.W4A8_NVFP4_FP8, *MXFP4, *INTEGER_GROUPS, QuantAlgo.W4A16)


def _groups_of(size: int, *quants: QuantAlgo) -> Requirement:
    return need(Reason.QUANT_UNSUPPORTED, "quant_group_size", Equals(value=size), when=(one_of("quant", *quants),))


def _whole_bytes(fact: str) -> Requirement:
    return divisible(fact, 2, when=(one_of("quant", *FOUR_BITS),), hint="two codes share a byte")


CANDIDATES = (
    MoECandidate(
        identity="moe_core.torch.reference_loop.any",
        kind=CandidateKind.BACKEND,
        family="VANILLA",
        title="one expert after another, dequantized as it comes, plain torch, any device",
        priority=100,
        factory="moe_plugins.vanilla.backend:ReferenceLoop",
        requirements=(
            quant_in(*QuantAlgo),
            dtype_in(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16),
            _groups_of(16, *GROUPS_OF_16),
            _groups_of(32, *GROUPS_OF_32),
            _groups_of(128, QuantAlgo.FP8_BLOCK_SCALES),
            _whole_bytes("hidden_size"),
            _whole_bytes("intermediate_size_per_tp"),
            no_smart_router(),
        ),
        layouts=tuple(TokenLayout),
        capabilities=MoEStaticCapability(
            supports_graph_padding_trim=True,
            supports_expert_bias=True,
            supports_apply_router_weight_on_input=True,
            supports_non_divisible_ep=True,
            supports_uneven_tp=True,
            supports_cuda_graph=False,  # the loop asks the device how many rows each expert has
        ),
        activation=MoEActivationSupport(
            kinds=tuple(ActivationType), constants=("alpha", "beta", "clamp"), clamp_after_silu=True
        ),
        tolerance=8e-3,
    ),
)
