"""TensorRT-LLM's backends that exchange tokens inside the kernel."""

from __future__ import annotations

from moe_core.contract.candidate import MoEActivationSupport, MoEStaticCapability
from moe_core.contract.declare import (
    AtLeast,
    AtMost,
    Conditions,
    Equals,
    Includes,
    Reason,
    SameAs,
    activation_in,
    divisible,
    feature,
    is_,
    need,
    no_gptoss_style,
    package,
    quant_in,
    sm_in,
)
from moe_core.contract.gates import EVEN_SLOTS
from moe_core.contract.requirement import Condition
from moe_core.contract.vocabulary import ActivationType, QuantAlgo, SchedulerKind
from moe_plugins.declared.limits import (
    BF16,
    FLOAT_SCALES,
    NO_GPTOSS,
    NO_MOE_TP,
    NO_SMART_ROUTER,
    SM100F,
    group_size,
    hidden_multiple,
)
from moe_plugins.declared.row import Requirements, backend

ALL_CONSTANTS = ("alpha", "beta", "clamp")
ABLE = MoEStaticCapability(supports_eplb=True, supports_non_divisible_ep=True)

SEVERAL_RANKS: Conditions = (Condition(fact="parallel_size", test=AtLeast(value=2)),)
WITH_ATTENTION_DP = (is_("use_dp", True),)
PURE_EP_HINT = "spread the experts over every rank: ep_size equal to the world"

EVEN_SLOTS_ALWAYS: Requirements = (
    EVEN_SLOTS,
    divisible(
        "num_slots",
        by="ep_size",
        when=(is_("eplb_enabled", False),),
        hint="use an ep_size that divides the experts, or EPLB with redundant slots",
        reason=Reason.SLOTS_NOT_DIVISIBLE_BY_EP,
    ),
)

MINIMAX: Conditions = (
    is_("activation", ActivationType.SWIGLU_BIAS),
    is_("bias", False),
    Condition(fact="activation_constant_names", test=Includes(values=ALL_CONSTANTS)),
)
"""MiniMax's form of SwigluBias: every constant and no bias; the one package that also runs without attention DP."""

ATTENTION_DP_HINT = "turn attention data parallelism on, so that ranks hold different tokens"

DEEPGEMM_ACTIVATION = MoEActivationSupport(kinds=(ActivationType.SWIGLU, ActivationType.SITU), constants=ALL_CONSTANTS)
CUTEDSL_ACTIVATION = MoEActivationSupport(
    kinds=(ActivationType.SWIGLU, ActivationType.SWIGLU_BIAS, ActivationType.SITU), constants=ALL_CONSTANTS
)

CANDIDATES = (
    backend(
        "deepgemm.cuda.mega_moe.w4a8_mxfp4_mxfp8",
        "MEGAMOE_DEEPGEMM",
        "DeepGEMM's fused exchange and experts, MXFP4 weights and MXFP8 activations",
        (
            sm_in(*SM100F),
            BF16,
            NO_GPTOSS,
            quant_in(QuantAlgo.W4A8_MXFP4_MXFP8),
            hidden_multiple(512),
            divisible("intermediate_size", 512),
            activation_in(*DEEPGEMM_ACTIVATION.kinds),
            NO_MOE_TP,
            NO_SMART_ROUTER,
            *EVEN_SLOTS_ALWAYS,
            need(Reason.TOPOLOGY_UNSUPPORTED, "use_dp", Equals(value=True), ATTENTION_DP_HINT, when=SEVERAL_RANKS),
            need(
                Reason.TOPOLOGY_UNSUPPORTED, "ep_size", SameAs(fact="parallel_size"), PURE_EP_HINT, when=SEVERAL_RANKS
            ),
            feature("deep_gemm.mega_moe"),
        ),
        activation=DEEPGEMM_ACTIVATION,
        able=ABLE,
        inputs=FLOAT_SCALES,
        scheduler_kind=SchedulerKind.FUSED_COMM,
    ),
    backend(
        "trtllm.cutedsl.mega_moe.nvfp4",
        "MEGAMOE_CUTEDSL",
        "CuTe DSL's fused exchange and experts, NVFP4",
        (
            sm_in(*SM100F),
            BF16,
            no_gptoss_style(unless=MINIMAX),
            quant_in(QuantAlgo.NVFP4),
            hidden_multiple(32),
            divisible("intermediate_size", 16),
            package("nvidia_cutlass_dsl", at_least="4.5.0", hint="install nvidia-cutlass-dsl[cu13] >= 4.5.0"),
            activation_in(*CUTEDSL_ACTIVATION.kinds),
            NO_MOE_TP,
            NO_SMART_ROUTER,
            *EVEN_SLOTS_ALWAYS,
            need(
                Reason.TOPOLOGY_UNSUPPORTED,
                "use_dp",
                Equals(value=True),
                ATTENTION_DP_HINT,
                when=SEVERAL_RANKS,
                unless=MINIMAX,
            ),
            need(
                Reason.TOPOLOGY_UNSUPPORTED,
                "ep_size",
                SameAs(fact="parallel_size"),
                PURE_EP_HINT,
                when=WITH_ATTENTION_DP,
            ),
            feature("nvidia_cutlass_dsl.megamoe_op"),
        ),
        activation=CUTEDSL_ACTIVATION,
        load=(
            need(Reason.TOPK_UNSUPPORTED, "top_k", AtMost(value=16)),
            group_size(QuantAlgo.NVFP4, 16),
        ),
        able=ABLE.evolve(supports_prefill_rebalance=True, reloadable=False),
        inputs=FLOAT_SCALES,
        scheduler_kind=SchedulerKind.FUSED_COMM,
    ),
)
