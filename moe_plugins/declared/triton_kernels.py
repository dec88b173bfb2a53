"""OpenAI's triton_kernels: as TensorRT-LLM's withdrawn Triton backend, and by itself."""

from __future__ import annotations

from moe_core.contract.candidate import MoEActivationSupport, MoEStaticCapability
from moe_core.contract.declare import activation_in, dtype_in, is_, package, quant_in, routing_in, sm_in
from moe_core.contract.vocabulary import ActivationType, DType, QuantAlgo, RoutingMethodType
from moe_plugins.declared.limits import BF16, NO_EPLB, NO_SMART_ROUTER
from moe_plugins.declared.row import backend

ACTIVATION = MoEActivationSupport(
    kinds=(ActivationType.SWIGLU, ActivationType.SWIGLU_BIAS), constants=("alpha", "beta", "clamp")
)

CANDIDATES = (
    backend(
        "triton_kernels.triton.matmul_ogs.any",
        "TRITON",
        "TensorRT-LLM's complete layer on triton_kernels, for Hopper",
        (
            sm_in(90),
            NO_EPLB,
            activation_in(*ACTIVATION.kinds),
            NO_SMART_ROUTER,
            routing_in(RoutingMethodType.RENORMALIZE, RoutingMethodType.RENORMALIZE_NAIVE),
            dtype_in(DType.BFLOAT16, when=(is_("quant", QuantAlgo.NONE),)),
            dtype_in(DType.FLOAT16, DType.BFLOAT16, when=(is_("quant", QuantAlgo.W4A16_MXFP4),)),
            quant_in(QuantAlgo.NONE, QuantAlgo.FP8, QuantAlgo.W4A8_MXFP4_FP8, QuantAlgo.W4A16_MXFP4),
        ),
        activation=ACTIVATION,
        able=MoEStaticCapability(supports_expert_bias=True),
    ),
    backend(
        "triton_kernels.triton.matmul_ogs.w4a16_mxfp4",
        "TRITON",
        "triton_kernels, MXFP4 weights and 16-bit activations",
        (
            quant_in(QuantAlgo.W4A16_MXFP4),
            sm_in(90, 100, 103),
            BF16,
            package(
                "triton_kernels",
                at_least="3.5",
                hint="install it from triton's repository, of triton's own version; PyPI's triton-kernels is another",
            ),
        ),
        upstream=False,
        activation=ACTIVATION,
        able=MoEStaticCapability(supports_expert_bias=True, needs_jit=True),
    ),
)
