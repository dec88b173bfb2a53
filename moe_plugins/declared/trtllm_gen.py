"""TensorRT-LLM's own bindings of the TRTLLM-Gen kernels."""

from __future__ import annotations

from moe_core.contract.candidate import (
    AdjustmentRule,
    MoEActivationSupport,
    MoECandidate,
    MoEInputRequirement,
    MoEStaticCapability,
)
from moe_core.contract.declare import Equals, Reason, Requirement, is_, need, one_of, quant_in, sm_in
from moe_core.contract.vocabulary import ActivationType, DType, QuantAlgo, RoutingSplit
from moe_plugins.declared.limits import (
    BF16,
    NO_BIAS,
    NO_CONSTANTS,
    NO_GPTOSS,
    NO_SMART_ROUTER,
    SM100F,
    group_size,
    hidden_multiple,
    padded,
    shard_multiple,
    without_kinds,
)
from moe_plugins.declared.row import Requirements, backend

ABLE = MoEStaticCapability(supports_eplb=True, supports_expert_bias=True)
ABLE_UNEVEN_TP = ABLE.evolve(supports_uneven_tp=True)
"""MXFP4 weights are padded before they are sharded."""
ABLE_WITHOUT_BIAS = MoEStaticCapability(supports_eplb=True)
INPUTS = MoEInputRequirement(
    routing_scales_dtype=DType.BFLOAT16,
    # The kernels understand -1 as an unused id, and nothing else.
    requires_sanitized_expert_ids=True,
    onesided_workspace_dtype=DType.BFLOAT16,
)

NO_SITU = without_kinds(ActivationType.SITU)
WITH_SITU = (is_("activation", ActivationType.SITU),)
NO_BIAS_WITH_SITU = need(Reason.ACTIVATION_UNSUPPORTED, "bias", Equals(value=False), when=WITH_SITU)


def prefix(quant: QuantAlgo, *, gptoss: bool, situ: bool) -> Requirements:
    """The gates that every TRTLLM-Gen leaf has first."""
    optional: tuple[tuple[bool, Requirement], ...] = ((gptoss, NO_GPTOSS), (situ, NO_SITU))
    return (
        quant_in(quant),
        sm_in(*SM100F),
        BF16,
        NO_SMART_ROUTER,
        *(refusal for able, refusal in optional if not able),
    )


def _leaf(
    quant: QuantAlgo,
    title: str,
    activation: MoEActivationSupport,
    extra: Requirements = (),
    *,
    load: Requirements = (),
    able: MoEStaticCapability = ABLE,
    adjustments: tuple[AdjustmentRule, ...] = (),
) -> MoECandidate:
    kinds = activation.kinds
    gates = prefix(quant, gptoss=ActivationType.SWIGLU_BIAS in kinds, situ=ActivationType.SITU in kinds)
    return backend(
        f"trtllm.trtllm_gen.fused_moe.{quant.lower()}",
        "TRTLLM",
        title,
        (*gates, *extra),
        activation=activation,
        load=load,
        able=able,
        inputs=INPUTS,
        adjustments=adjustments,
        routing_split=RoutingSplit.EITHER,
    )


def _activation(*kinds: ActivationType) -> MoEActivationSupport:
    return MoEActivationSupport(kinds=kinds, constants=("alpha", "beta", "clamp"), per_expert=True)


MXFP4_ACTIVATION = _activation(ActivationType.SWIGLU, ActivationType.SWIGLU_BIAS, ActivationType.SITU)
MXFP4_WITH_SITU: Requirements = (shard_multiple(32, when=WITH_SITU), NO_BIAS_WITH_SITU)
MXFP4_PADDING = padded(shard=128, hidden=512)

CANDIDATES = (
    _leaf(
        QuantAlgo.NVFP4,
        "TRTLLM-Gen, NVFP4",
        _activation(
            ActivationType.SWIGLU,
            ActivationType.SWIGLU_BIAS,
            ActivationType.RELU2,
            ActivationType.SILU,
            ActivationType.SITU,
        ),
        (shard_multiple(16, when=WITH_SITU), NO_BIAS_WITH_SITU),
        load=(group_size(QuantAlgo.NVFP4, 16),),
        # Widths up to 1024 are padded to 32 only.
        adjustments=padded(shard=128, hidden=256),
    ),
    _leaf(
        QuantAlgo.FP8_BLOCK_SCALES,
        "TRTLLM-Gen, FP8 block scales",
        MoEActivationSupport(kinds=(ActivationType.SWIGLU,), constants=("clamp",)),
        (NO_BIAS,),
        load=(shard_multiple(128), hidden_multiple(128), group_size(QuantAlgo.FP8_BLOCK_SCALES, 128)),
        able=ABLE_WITHOUT_BIAS,
    ),
    _leaf(
        QuantAlgo.W4A16_MXFP4,
        "TRTLLM-Gen, MXFP4 weights and 16-bit activations",
        MXFP4_ACTIVATION,
        MXFP4_WITH_SITU,
        able=ABLE_UNEVEN_TP,
        adjustments=MXFP4_PADDING,
    ),
    _leaf(
        QuantAlgo.W4A8_MXFP4_MXFP8,
        "TRTLLM-Gen, MXFP4 weights and MXFP8 activations",
        MXFP4_ACTIVATION,
        MXFP4_WITH_SITU,
        able=ABLE_UNEVEN_TP,
        adjustments=MXFP4_PADDING,
    ),
    _leaf(
        QuantAlgo.W4A8_NVFP4_FP8,
        "TRTLLM-Gen, NVFP4 weights and FP8 activations",
        MoEActivationSupport(kinds=(ActivationType.SWIGLU,)),
        (sm_in(100, 103, when=(one_of("sm", *SM100F),)), NO_BIAS, NO_CONSTANTS),
        load=(group_size(QuantAlgo.W4A8_NVFP4_FP8, 32),),
        able=ABLE_WITHOUT_BIAS,
    ),
    _leaf(
        QuantAlgo.W4A8_MXFP4_FP8,
        "TRTLLM-Gen, MXFP4 weights and FP8 activations",
        _activation(ActivationType.SWIGLU, ActivationType.SWIGLU_BIAS),
        able=ABLE_UNEVEN_TP,
        adjustments=MXFP4_PADDING,
    ),
)
