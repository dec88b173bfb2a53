"""FlashInfer's b12x kernels for SM120 and SM121, as TensorRT-LLM uses them."""

from __future__ import annotations

from moe_core.contract.candidate import MoEActivationSupport, MoECandidate, MoEStaticCapability
from moe_core.contract.declare import Equals, Reason, activation_in, need, package, quant_in, sm_in
from moe_core.contract.vocabulary import ActivationType, QuantAlgo
from moe_plugins.declared.limits import HALF, NO_EPLB, NO_GPTOSS, ONE_EP_RANK, group_size
from moe_plugins.declared.row import backend

ACTIVATION = MoEActivationSupport(kinds=(ActivationType.SWIGLU, ActivationType.RELU2))
NO_ATTENTION_DP = need(
    Reason.TOPOLOGY_UNSUPPORTED, "use_dp", Equals(value=False), "turn attention data parallelism off"
)


def _leaf(quant: QuantAlgo, title: str) -> MoECandidate:
    return backend(
        f"flashinfer.b12x.fused_moe.{quant.lower()}",
        "CUTEDSL",
        title,
        (
            quant_in(quant),
            sm_in(120, 121),
            HALF,
            NO_GPTOSS,
            activation_in(*ACTIVATION.kinds),
            package("flashinfer", hint="install flashinfer-python"),
            NO_EPLB,
            ONE_EP_RANK,
            NO_ATTENTION_DP,
        ),
        activation=ACTIVATION,
        load=(group_size(quant, 16),),
        able=MoEStaticCapability(supports_dwdp=True),
    )


CANDIDATES = (
    _leaf(QuantAlgo.NVFP4, "b12x, NVFP4 (CUTLASS from 64 tokens on)"),
    _leaf(QuantAlgo.W4A16_NVFP4, "b12x, NVFP4 weights and 16-bit activations"),
)
