"""TensorRT-LLM's CUTLASS family: grouped GEMMs, and the two block-scale kernels that it counts among them."""

from __future__ import annotations

from moe_core.contract.candidate import AdjustmentRule, MoEActivationSupport, MoECandidate, MoEStaticCapability
from moe_core.contract.declare import (
    Equals,
    Reason,
    Requirement,
    dtype_in,
    is_,
    need,
    quant_in,
    sm_at_least,
    sm_in,
    whole_groups,
)
from moe_core.contract.vocabulary import ActivationType, DType, QuantAlgo
from moe_plugins.declared.limits import (
    BF16,
    FC1_ROWS,
    FLOAT_SCALES,
    HALF,
    HALF_OR_FLOAT,
    NO_GPTOSS,
    RUBIN,
    group_size,
    hidden_multiple,
    padded,
    shard_multiple,
)
from moe_plugins.declared.row import EITHER_LAYOUT, Requirements, backend

ACTIVATION = MoEActivationSupport(
    kinds=(
        ActivationType.SWIGLU,
        ActivationType.SWIGLU_BIAS,
        # Upstream has one word for both forms of GELU.
        ActivationType.GEGLU,
        ActivationType.GEGLU_TANH,
        ActivationType.SITU,
        ActivationType.RELU2,
        ActivationType.SILU,
    ),
    constants=("alpha", "beta", "clamp"),
    per_expert=True,
)
ABLE = MoEStaticCapability(supports_eplb=True, supports_expert_bias=True, supports_apply_router_weight_on_input=True)
ABLE_LORA = ABLE.evolve(supports_moe_lora=True)
ABLE_UNEVEN_TP = ABLE.evolve(supports_uneven_tp=True)
"""MXFP4 weights are padded before they are sharded."""

NO_BIAS_IN_GPTOSS_STYLE = need(
    Reason.ACTIVATION_UNSUPPORTED,
    "bias",
    Equals(value=False),
    "a bias vector cannot be padded beside packed FP4 weights",
    when=(is_("swiglu_gptoss_style", True),),
)
BLOCKS_OF_128: Requirements = (
    shard_multiple(128),
    hidden_multiple(128),
    group_size(QuantAlgo.FP8_BLOCK_SCALES, 128),
)
GATED = need(Reason.ACTIVATION_UNSUPPORTED, "is_gated", Equals(value=True))


def _leaf(
    identity: str,
    title: str,
    sm: Requirement,
    dtype: Requirement,
    *,
    gptoss: bool = False,
    extra: Requirements = (),
    load: Requirements = (),
    able: MoEStaticCapability = ABLE,
    adjustments: tuple[AdjustmentRule, ...] = (),
) -> MoECandidate:
    quant = QuantAlgo(identity.rpartition(".")[2])
    return backend(
        identity,
        "CUTLASS",
        title,
        (quant_in(quant), sm, dtype, *(() if gptoss else (NO_GPTOSS,)), *extra),
        activation=ACTIVATION,
        load=load,
        able=able,
        inputs=FLOAT_SCALES,
        adjustments=adjustments,
        layouts=EITHER_LAYOUT,
    )


CANDIDATES = (
    _leaf(
        "deepgemm.cuda.hopper_grouped_gemm.fp8_block_scales",
        "DeepGEMM's Hopper kernel as bundled by TensorRT-LLM, FP8 block scales",
        sm_in(90),
        BF16,
        load=BLOCKS_OF_128,
    ),
    _leaf(
        "trtllm.triton.blockscale_gemm.fp8_block_scales",
        "weight-only FP8 block scales for SM120, in Triton",
        sm_in(120),
        BF16,
        load=(*BLOCKS_OF_128, GATED),
    ),
    _leaf(
        "trtllm.cutlass.grouped_gemm.nvfp4",
        "CUTLASS grouped GEMM, NVFP4",
        sm_in(100, 103, RUBIN, 120, 121),
        dtype_in(DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8_E4M3FN),
        gptoss=True,
        extra=(NO_BIAS_IN_GPTOSS_STYLE, FC1_ROWS),
        load=(group_size(QuantAlgo.NVFP4, 16),),
    ),
    _leaf(
        "trtllm.cutlass.grouped_gemm.w4a16_nvfp4",
        "NVFP4 weights dequantized for the active experts, then CUTLASS",
        sm_at_least(80),
        HALF,
        load=(group_size(QuantAlgo.W4A16_NVFP4, 16), shard_multiple(16), hidden_multiple(16)),
    ),
    _leaf(
        "trtllm.cutlass.grouped_gemm.mxfp8",
        "CUTLASS grouped GEMM, MXFP8",
        sm_in(100, 103),
        HALF,
        gptoss=True,
        load=(hidden_multiple(128), shard_multiple(128)),
    ),
    _leaf(
        "trtllm.cutlass.grouped_gemm.w4a8_mxfp4_fp8",
        "CUTLASS grouped GEMM, MXFP4 weights and FP8 activations",
        sm_in(100, 103, RUBIN),
        HALF_OR_FLOAT,
        gptoss=True,
        able=ABLE_UNEVEN_TP,
        adjustments=padded(shard=128, hidden=128),
    ),
    _leaf(
        "trtllm.cutlass.grouped_gemm.w4a8_mxfp4_mxfp8",
        "CUTLASS grouped GEMM, MXFP4 weights and MXFP8 activations",
        sm_in(100, 103, RUBIN, 120, 121),
        HALF_OR_FLOAT,
        gptoss=True,
        able=ABLE_UNEVEN_TP,
        adjustments=padded(shard=128, hidden=128),
    ),
    _leaf(
        "trtllm.cutlass.grouped_gemm.w4a16_mxfp4",
        "CUTLASS grouped GEMM for Hopper, MXFP4 weights and 16-bit activations",
        sm_in(90),
        HALF,
        gptoss=True,
        able=ABLE_UNEVEN_TP,
        adjustments=padded(shard=128, hidden=128),
    ),
    _leaf(
        "trtllm.cutlass.grouped_gemm.w4a8_awq",
        "CUTLASS grouped GEMM, AWQ int4 weights and FP8 activations",
        sm_in(89, 90),
        HALF,
        load=(group_size(QuantAlgo.W4A8_AWQ, 128), whole_groups(), hidden_multiple(128)),
    ),
    _leaf(
        "trtllm.cutlass.grouped_gemm.w8a16",
        "CUTLASS grouped GEMM, int8 weights",
        sm_at_least(80),
        HALF,
    ),
    _leaf(
        "trtllm.cutlass.grouped_gemm.fp8",
        "CUTLASS grouped GEMM, FP8 with one scale per tensor",
        sm_at_least(89),
        HALF_OR_FLOAT,
        able=ABLE_LORA,
        adjustments=padded(shard=32, hidden=32),
    ),
    _leaf(
        "trtllm.cutlass.grouped_gemm.none",
        "CUTLASS grouped GEMM, unquantized",
        sm_at_least(80),
        HALF,
        gptoss=True,
        able=ABLE_LORA,
    ),
)
