"""Marlin, weight-only kernels for 16-bit activations: TensorRT-LLM's vendored copy, and vLLM's."""

from __future__ import annotations

from moe_core.contract.candidate import MoEActivationSupport, MoECandidate, MoEStaticCapability
from moe_core.contract.declare import OneOf, Reason, dtype_in, is_, need, package, quant_in, sm_in, whole_groups
from moe_core.contract.vocabulary import ActivationType, DType, QuantAlgo
from moe_plugins.declared.limits import (
    BF16,
    FLOAT_SCALES,
    HALF,
    NO_EPLB,
    NO_GPTOSS,
    TOP_1_WHEN_WEIGHTED_ON_INPUT,
    group_size,
    hidden_multiple,
    padded,
    shard_multiple,
)
from moe_plugins.declared.row import EITHER_LAYOUT, Requirements, backend

VENDORED_ACTIVATION = MoEActivationSupport(
    # Upstream has one word for both forms of GELU.
    kinds=(ActivationType.SWIGLU, ActivationType.GEGLU, ActivationType.GEGLU_TANH, ActivationType.RELU2)
)
PACKAGED_ACTIVATION = MoEActivationSupport(
    kinds=(
        ActivationType.SWIGLU,
        ActivationType.SWIGLU_BIAS,
        ActivationType.GEGLU,
        ActivationType.GEGLU_TANH,
        ActivationType.RELU2,
    ),
    constants=("alpha", "beta", "clamp"),
)


def _vendored(quant: QuantAlgo, title: str) -> MoECandidate:
    return backend(
        f"marlin.cuda.fused_moe.{quant.lower()}",
        "MARLIN",
        title,
        # Compute capabilities from 89 up to, and without, 100 that exist.
        (quant_in(quant), sm_in(89, 90), BF16, NO_GPTOSS, NO_EPLB),
        activation=VENDORED_ACTIVATION,
        load=(shard_multiple(16), hidden_multiple(16), group_size(quant, 16), TOP_1_WHEN_WEIGHTED_ON_INPUT),
        able=MoEStaticCapability(supports_apply_router_weight_on_input=True),
        inputs=FLOAT_SCALES,
        layouts=EITHER_LAYOUT,
    )


def _packaged(quant: QuantAlgo, title: str, load: Requirements) -> MoECandidate:
    return backend(
        f"vllm.cuda.marlin_moe.{quant.lower()}",
        "MARLIN",
        title,
        (
            quant_in(quant),
            sm_in(75, 80, 86, 87, 89, 90, 100, 103, 120, 121),
            HALF,
            dtype_in(DType.FLOAT16, when=(is_("sm", 75),)),
            # Marlin is internal to vLLM: the version is that of the signature.
            package("vllm", at_least="0.11"),
        ),
        upstream=False,
        activation=PACKAGED_ACTIVATION,
        load=(*load, hidden_multiple(128)),
        able=MoEStaticCapability(supports_expert_bias=True, supports_apply_router_weight_on_input=True),
        inputs=FLOAT_SCALES,
        adjustments=padded(shard=64),
        layouts=EITHER_LAYOUT,
    )


def _fp4(quant: QuantAlgo, title: str, group: int) -> MoECandidate:
    return _packaged(quant, title, (group_size(quant, group),))


def _int4(quant: QuantAlgo, title: str) -> MoECandidate:
    groups = need(
        Reason.QUANT_UNSUPPORTED, "quant_group_size", OneOf(values=(32, 64, 128)), when=(is_("quant", quant),)
    )
    return _packaged(quant, title, (groups, whole_groups(when=(is_("quant", quant),))))


CANDIDATES = (
    _vendored(QuantAlgo.NVFP4, "Marlin as vendored by TensorRT-LLM, NVFP4 weights"),
    _vendored(QuantAlgo.W4A16_NVFP4, "Marlin as vendored by TensorRT-LLM, NVFP4 weights without input scales"),
    _fp4(QuantAlgo.W4A16_MXFP4, "vLLM's Marlin, MXFP4 weights", 32),
    _fp4(QuantAlgo.NVFP4, "vLLM's Marlin, NVFP4 weights (activations stay 16-bit)", 16),
    _fp4(QuantAlgo.W4A16_NVFP4, "vLLM's Marlin, NVFP4 weights without input scales", 16),
    _int4(QuantAlgo.W4A16_AWQ, "vLLM's Marlin, AWQ int4 weights"),
    _int4(QuantAlgo.W4A16_GPTQ, "vLLM's Marlin, GPTQ int4 weights"),
)
