"""TensorRT-LLM's PrimsTS backend, which lives on a branch."""

from __future__ import annotations

from moe_core.contract.candidate import MoEActivationSupport
from moe_core.contract.declare import (
    AtLeast,
    NoneOf,
    Reason,
    activation_in,
    is_,
    need,
    one_of,
    package,
    quant_in,
    sm_in,
)
from moe_core.contract.requirement import Condition
from moe_core.contract.vocabulary import ActivationType, QuantAlgo
from moe_plugins.declared.limits import (
    BF16,
    NO_BIAS,
    NO_EPLB,
    NO_GPTOSS,
    NO_SMART_ROUTER,
    ON_RUBIN,
    RUBIN_KERNELS_ON_RUBIN,
    SM100F,
    group_size,
    hidden_multiple,
    shard_multiple,
)
from moe_plugins.declared.row import backend

ACTIVATION = MoEActivationSupport(kinds=(ActivationType.SWIGLU, ActivationType.SITU), constants=("alpha", "beta"))
WIDER_THAN_1024 = Condition(fact="hidden_size", test=AtLeast(value=1025))

CANDIDATES = (
    backend(
        "trtllm.prims_ts.fused_moe.any",
        "PRIMS_TS",
        "PrimsTS (branch): unquantized, NVFP4 and MXFP4 weights with MXFP8 activations",
        (
            NO_EPLB,
            sm_in(*SM100F),
            need(Reason.QUANT_UNSUPPORTED, "quant", NoneOf(values=(QuantAlgo.W4A8_MXFP4_MXFP8,)), when=ON_RUBIN),
            RUBIN_KERNELS_ON_RUBIN,
            BF16,
            NO_SMART_ROUTER,
            activation_in(ActivationType.SWIGLU, when=(is_("quant", QuantAlgo.NONE),)),
            quant_in(QuantAlgo.NONE, QuantAlgo.NVFP4, QuantAlgo.W4A8_MXFP4_MXFP8),
            activation_in(*ACTIVATION.kinds),
            NO_BIAS,
            NO_GPTOSS,
            hidden_multiple(128, when=(one_of("quant", QuantAlgo.NONE, QuantAlgo.NVFP4),)),
            hidden_multiple(256, when=(is_("quant", QuantAlgo.NVFP4), WIDER_THAN_1024)),
            hidden_multiple(512, when=(is_("quant", QuantAlgo.W4A8_MXFP4_MXFP8),)),
            shard_multiple(128),
            package("prims_ts"),
        ),
        activation=ACTIVATION,
        load=(group_size(QuantAlgo.NVFP4, 16),),
    ),
)
