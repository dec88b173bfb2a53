"""TensorRT-LLM's CuTe DSL kernels that leave the token exchange to others."""

from __future__ import annotations

from moe_core.contract.candidate import MoEActivationSupport, MoEStaticCapability
from moe_core.contract.declare import (
    AtLeast,
    activation_in,
    divisible,
    is_,
    no_eplb,
    quant_in,
    sm_at_least,
    sm_in,
)
from moe_core.contract.requirement import Condition
from moe_core.contract.vocabulary import ActivationType, QuantAlgo
from moe_plugins.declared.limits import (
    BF16,
    FC1_ROWS,
    FLOAT_SCALES,
    FUSED_FINALIZE,
    FUSED_FINALIZE_ON_RUBIN,
    NO_GPTOSS,
    ONE_EP_RANK,
    RUBIN,
    RUBIN_KERNELS,
    RUBIN_KERNELS_ON_RUBIN,
    SM100F,
    TOP_1_WHEN_WEIGHTED_ON_INPUT,
    group_size,
)
from moe_plugins.declared.row import EITHER_LAYOUT, Requirements, backend

GROUP = group_size(QuantAlgo.NVFP4, 16)
HOPPER_OR_LATER = sm_at_least(90)
ON_HOPPER_OR_LATER = (Condition(fact="sm", test=AtLeast(value=90)),)
NO_EPLB_IN_LOCALITY_DOMAIN = no_eplb(
    when=(is_("locality_domain_requested", True), is_("feature:tensorrt_llm.locality_domain", True))
)
COMMON: Requirements = (HOPPER_OR_LATER, BF16, NO_GPTOSS, NO_EPLB_IN_LOCALITY_DOMAIN, FUSED_FINALIZE_ON_RUBIN)
"""One class upstream, which looks at the format after all of these."""

ABLE = MoEStaticCapability(
    supports_dwdp=True,
    supports_eplb=True,
    supports_apply_router_weight_on_input=True,
    supports_deep_ep_direct_metadata=True,
    supports_non_divisible_ep=True,
)
ABLE_FC12 = MoEStaticCapability(supports_dwdp=True, supports_eplb=True, supports_apply_router_weight_on_input=True)
SWIGLU_CLAMPED = MoEActivationSupport(kinds=(ActivationType.SWIGLU,), constants=("clamp",))

CANDIDATES = (
    backend(
        "trtllm.cutedsl.fused_moe.nvfp4",
        "CUTEDSL",
        "CuTe DSL grouped GEMMs, NVFP4",
        (
            *COMMON,
            quant_in(QuantAlgo.NVFP4),
            sm_in(*SM100F, when=ON_HOPPER_OR_LATER),
            RUBIN_KERNELS_ON_RUBIN,
            FC1_ROWS,
        ),
        activation=MoEActivationSupport(kinds=(ActivationType.SWIGLU, ActivationType.RELU2), constants=("clamp",)),
        load=(GROUP, TOP_1_WHEN_WEIGHTED_ON_INPUT),
        able=ABLE,
        inputs=FLOAT_SCALES,
        layouts=EITHER_LAYOUT,
    ),
    backend(
        "trtllm.cutedsl.fused_moe.none",
        "CUTEDSL",
        "CuTe DSL grouped GEMMs for Rubin, unquantized",
        (
            *COMMON,
            quant_in(QuantAlgo.NONE),
            sm_in(RUBIN, when=ON_HOPPER_OR_LATER),
            RUBIN_KERNELS,
            activation_in(ActivationType.SWIGLU),
        ),
        activation=SWIGLU_CLAMPED,
        load=(TOP_1_WHEN_WEIGHTED_ON_INPUT,),
        able=ABLE,
        inputs=FLOAT_SCALES,
        layouts=EITHER_LAYOUT,
    ),
    backend(
        "trtllm.cutedsl.fused_fc12.nvfp4",
        "CUTEDSL_FC12",
        "CuTe DSL, both projections in one kernel, for Rubin, NVFP4",
        (BF16, NO_GPTOSS, quant_in(QuantAlgo.NVFP4), sm_in(RUBIN), FUSED_FINALIZE, RUBIN_KERNELS),
        activation=SWIGLU_CLAMPED,
        load=(FC1_ROWS, GROUP, TOP_1_WHEN_WEIGHTED_ON_INPUT),
        able=ABLE_FC12,
        inputs=FLOAT_SCALES,
        layouts=EITHER_LAYOUT,
    ),
    backend(
        "trtllm.cutedsl.dense_gemm.nvfp4",
        "DENSEGEMM",
        "CuTe DSL, all experts as one dense GEMM, NVFP4",
        (
            sm_in(100, 103),
            quant_in(QuantAlgo.NVFP4),
            NO_GPTOSS,
            activation_in(ActivationType.SWIGLU),
            ONE_EP_RANK,
            divisible("intermediate_size", 256),
        ),
        activation=MoEActivationSupport(kinds=(ActivationType.SWIGLU,)),
        load=(GROUP,),
        able=MoEStaticCapability(supports_eplb=True),
    ),
)
