"""SonicMoE: CuTe DSL kernels with the gather fused."""

from __future__ import annotations

from moe_core.contract.candidate import MoEActivationSupport, MoEStaticCapability
from moe_core.contract.declare import Installed, Reason, need, package, quant_in, sm_in
from moe_core.contract.requirement import Condition
from moe_core.contract.vocabulary import ActivationType, QuantAlgo
from moe_plugins.declared.limits import BF16
from moe_plugins.declared.row import backend

BEFORE_BLACKWELL = (Condition(fact="package:sonicmoe", test=Installed(below="0.1.2")),)

CANDIDATES = (
    backend(
        "sonicmoe.cutedsl.general_routing.none",
        "SONICMOE",
        "SonicMoE, unquantized",
        (
            quant_in(QuantAlgo.NONE),
            sm_in(90, 100, 103),
            sm_in(90, when=BEFORE_BLACKWELL),
            BF16,
            package("sonicmoe", hint="install sonic-moe"),
            need(Reason.DEP_MISSING, "cuda_version", Installed(at_least="12.9")),
            need(Reason.DEP_MISSING, "python_version", Installed(at_least="3.12")),
            package("torch", at_least="2.7.1"),
        ),
        upstream=False,
        activation=MoEActivationSupport(
            kinds=(
                ActivationType.SWIGLU,
                ActivationType.GEGLU,
                ActivationType.RELU2,
                ActivationType.RELU,
                ActivationType.GELU,
                ActivationType.SILU,
            )
        ),
        able=MoEStaticCapability(supports_expert_bias=True, needs_jit=True),
    ),
)
