"""FlashInfer's CUTLASS fused MoE."""

from __future__ import annotations

from moe_core.contract.candidate import MoEActivationSupport, MoECandidate, MoEStaticCapability
from moe_core.contract.declare import Equals, FixableBy, Installed, Reason, Requirement, need, package, quant_in, sm_in
from moe_core.contract.requirement import Condition
from moe_core.contract.vocabulary import ActivationType, QuantAlgo
from moe_plugins.declared.limits import BF16, FLOAT_SCALES, HALF, group_size, hidden_multiple, shard_multiple
from moe_plugins.declared.row import EITHER_LAYOUT, Requirements, backend

BUILT_FOR = (90, 100, 103, 120)
FP4_BUILT_FOR = (100, 103, 120)

ACTIVATION = MoEActivationSupport(
    kinds=(
        ActivationType.SWIGLU,
        ActivationType.SWIGLU_BIAS,
        ActivationType.GEGLU,
        ActivationType.GEGLU_TANH,
        ActivationType.SITU,
        ActivationType.RELU2,
        ActivationType.SILU,
        ActivationType.GELU,
        ActivationType.RELU,
    ),
    constants=("alpha", "beta", "clamp"),
    per_expert=True,
)

COMPILED = need(
    Reason.PATH_NOT_ENABLED,
    "can_jit",
    Equals(value=True),
    "allow run-time compilation, or install flashinfer-jit-cache",
    unless=(Condition(fact="package:flashinfer_jit_cache", test=Installed()),),
    fixable=FixableBy.INSTALL,
)
HOPPER_BLOCK_SCALES = need(
    Reason.DEP_MISSING, "cuda_version", Installed(at_least="12.8"), "use a torch built for CUDA 12.8 or later"
)


def _leaf(
    quant: QuantAlgo,
    title: str,
    sms: tuple[int, ...],
    dtype: Requirement,
    *shapes: Requirement,
    extra: Requirements = (),
) -> MoECandidate:
    return backend(
        f"flashinfer.cutlass.fused_moe.{quant.lower()}",
        "CUTLASS",
        title,
        (
            quant_in(quant),
            sm_in(*sms),
            dtype,
            package("flashinfer", hint="install flashinfer-python"),
            COMPILED,
            *extra,
        ),
        upstream=False,
        activation=ACTIVATION,
        load=shapes,
        able=MoEStaticCapability(supports_eplb=True, supports_expert_bias=True),
        inputs=FLOAT_SCALES,
        layouts=EITHER_LAYOUT,
    )


CANDIDATES = (
    _leaf(
        QuantAlgo.NONE,
        "FlashInfer's CUTLASS, unquantized",
        BUILT_FOR,
        HALF,
        shard_multiple(8),
        hidden_multiple(8),
    ),
    _leaf(
        QuantAlgo.FP8,
        "FlashInfer's CUTLASS, FP8 with one scale per tensor",
        BUILT_FOR,
        HALF,
        shard_multiple(16),
        hidden_multiple(16),
    ),
    _leaf(
        QuantAlgo.FP8_BLOCK_SCALES,
        "FlashInfer's CUTLASS for Hopper, FP8 block scales",
        (90,),
        BF16,
        shard_multiple(128),
        hidden_multiple(128),
        group_size(QuantAlgo.FP8_BLOCK_SCALES, 128),
        extra=(HOPPER_BLOCK_SCALES,),
    ),
    _leaf(
        QuantAlgo.NVFP4,
        "FlashInfer's CUTLASS, NVFP4",
        FP4_BUILT_FOR,
        HALF,
        # Gated, 2 x 64 rows are one tile of scales; not gated, 64 rows of FC1 are already enough.
        shard_multiple(64),
        hidden_multiple(32),
        group_size(QuantAlgo.NVFP4, 16),
    ),
    _leaf(
        QuantAlgo.W4A16_MXFP4,
        "FlashInfer's CUTLASS for Hopper, MXFP4 weights and 16-bit activations",
        (90,),
        HALF,
        shard_multiple(128),
        hidden_multiple(128),
    ),
    _leaf(
        QuantAlgo.W4A8_MXFP4_MXFP8,
        "FlashInfer's CUTLASS, MXFP4 weights and MXFP8 activations",
        FP4_BUILT_FOR,
        HALF,
        shard_multiple(128),
        hidden_multiple(128),
    ),
)
