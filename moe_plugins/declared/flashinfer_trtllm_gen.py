"""FlashInfer's bindings of the TRTLLM-Gen kernels, as TensorRT-LLM uses them."""

from __future__ import annotations

from moe_core.contract.candidate import (
    AdjustmentRule,
    MoEActivationSupport,
    MoECandidate,
    MoEInputRequirement,
    MoEStaticCapability,
)
from moe_core.contract.declare import (
    Conditions,
    NoneOf,
    Reason,
    SubsetOf,
    activation_in,
    divisible,
    feature,
    flag,
    isnt,
    need,
    package,
)
from moe_core.contract.requirement import Condition, Requirement
from moe_core.contract.vocabulary import ActivationType, QuantAlgo, RoutingMethodType, RoutingSplit
from moe_plugins.declared.limits import (
    FUSED_FINALIZE,
    NO_BIAS,
    NO_CONSTANTS,
    NO_EPLB,
    group_size,
    hidden_multiple,
    padded,
    shard_multiple,
    without_kinds,
)
from moe_plugins.declared.row import Requirements, backend
from moe_plugins.declared.trtllm_gen import ABLE, ABLE_WITHOUT_BIAS, INPUTS, prefix

ALL_CONSTANTS = ("alpha", "beta", "clamp")
SWIGLU_OR_RELU2 = (ActivationType.SWIGLU, ActivationType.RELU2)

CHOSEN: Requirements = (
    package("flashinfer", hint="install flashinfer-python"),
    flag("TRTLLM_GEN_FUSED_MOE_USE_FLASHINFER", "1"),
    without_kinds(ActivationType.SITU, ActivationType.RELU2),
    need(
        Reason.ROUTING_UNSUPPORTED,
        "routing",
        NoneOf(values=(RoutingMethodType.DEEPSEEK_V3, RoutingMethodType.DEFAULT)),
    ),
)
"""What the leaves that replace a native one on request have in common."""

NO_PADDED_METHOD: Conditions = (
    Condition(fact="activation_constant_names", test=SubsetOf(values=("beta", "clamp"))),
    isnt("activation", ActivationType.SITU, ActivationType.RELU2, ActivationType.SILU),
)
"""Weights are laid out unpadded: no alpha, and none of the activations that have the padded method."""


def _unless_unpadded(fact: str) -> Requirement:
    return need(Reason.SHAPE_UNALIGNED, fact, divisible(fact, 32).test, unless=NO_PADDED_METHOD)


def _leaf(
    quant: QuantAlgo,
    title: str,
    gates: Requirements,
    activation: MoEActivationSupport,
    *,
    load: Requirements = (),
    able: MoEStaticCapability = ABLE,
    inputs: MoEInputRequirement = INPUTS,
    adjustments: tuple[AdjustmentRule, ...] = (),
    routing_split: RoutingSplit = RoutingSplit.EITHER,
) -> MoECandidate:
    gptoss = ActivationType.SWIGLU_BIAS in activation.kinds
    return backend(
        f"flashinfer.trtllm_gen.fused_moe.{quant.lower()}",
        "TRTLLM",
        title,
        (*prefix(quant, gptoss=gptoss, situ=False), *gates),
        activation=activation,
        load=load,
        able=able,
        inputs=inputs,
        adjustments=adjustments,
        routing_split=routing_split,
    )


def _mxfp4_leaf(quant: QuantAlgo, title: str) -> MoECandidate:
    return _leaf(
        quant,
        title,
        (*CHOSEN, NO_BIAS, shard_multiple(128), hidden_multiple(512)),
        MoEActivationSupport(
            kinds=(ActivationType.SWIGLU, ActivationType.SWIGLU_BIAS), constants=ALL_CONSTANTS, per_expert=True
        ),
    )


CANDIDATES = (
    _leaf(
        QuantAlgo.NVFP4,
        "FlashInfer's TRTLLM-Gen, NVFP4",
        (*CHOSEN, NO_BIAS, _unless_unpadded("intermediate_size_per_tp"), _unless_unpadded("hidden_size")),
        MoEActivationSupport(
            kinds=(ActivationType.SWIGLU, ActivationType.SWIGLU_BIAS, ActivationType.SILU),
            constants=ALL_CONSTANTS,
            per_expert=True,
        ),
        load=(group_size(QuantAlgo.NVFP4, 16),),
    ),
    _leaf(
        QuantAlgo.FP8_BLOCK_SCALES,
        "FlashInfer's TRTLLM-Gen, FP8 block scales",
        (*CHOSEN, NO_BIAS),
        MoEActivationSupport(kinds=(ActivationType.SWIGLU,), constants=("clamp",)),
        load=(shard_multiple(128), hidden_multiple(128), group_size(QuantAlgo.FP8_BLOCK_SCALES, 128)),
    ),
    _mxfp4_leaf(QuantAlgo.W4A16_MXFP4, "FlashInfer's TRTLLM-Gen, MXFP4 weights and 16-bit activations"),
    _mxfp4_leaf(QuantAlgo.W4A8_MXFP4_MXFP8, "FlashInfer's TRTLLM-Gen, MXFP4 weights and MXFP8 activations"),
    _leaf(
        QuantAlgo.NONE,
        "FlashInfer's TRTLLM-Gen, unquantized",
        (
            activation_in(*SWIGLU_OR_RELU2),
            feature("flashinfer.bf16_moe"),
            shard_multiple(128),
            NO_BIAS,
            NO_CONSTANTS,
        ),
        MoEActivationSupport(kinds=SWIGLU_OR_RELU2),
        able=ABLE_WITHOUT_BIAS,
    ),
    _leaf(
        QuantAlgo.MXFP8,
        "FlashInfer's TRTLLM-Gen, MXFP8",
        (
            activation_in(*SWIGLU_OR_RELU2),
            NO_EPLB,
            FUSED_FINALIZE,
            feature("flashinfer.mxfp8_moe"),
            hidden_multiple(32),
            shard_multiple(32),
            NO_BIAS,
            NO_CONSTANTS,
        ),
        MoEActivationSupport(kinds=SWIGLU_OR_RELU2),
        able=MoEStaticCapability(),
        adjustments=padded(shard=128, hidden=256),
        routing_split=RoutingSplit.SEPARATED,
    ),
)
