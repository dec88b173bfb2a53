"""TensorRT-LLM's loop over experts in torch."""

from __future__ import annotations

from moe_core.contract.candidate import MoEActivationSupport, MoEStaticCapability
from moe_core.contract.declare import Reason, divisible, quant_in
from moe_core.contract.vocabulary import ActivationType, QuantAlgo
from moe_plugins.declared.limits import NO_EPLB, NO_GPTOSS, NO_SMART_ROUTER, without_kinds
from moe_plugins.declared.row import backend

CANDIDATES = (
    backend(
        "trtllm.torch.reference_loop.any",
        "VANILLA",
        "one expert after the other, in torch",
        (
            quant_in(
                QuantAlgo.NONE,
                QuantAlgo.FP8,
                QuantAlgo.FP8_PER_CHANNEL_PER_TOKEN,
                QuantAlgo.FP8_BLOCK_SCALES,
                QuantAlgo.NVFP4,
                QuantAlgo.W4A16_NVFP4,
                QuantAlgo.W4A8_NVFP4_FP8,
                QuantAlgo.W4A8_MXFP4_FP8,
                QuantAlgo.W4A8_MXFP4_MXFP8,
                QuantAlgo.MXFP8,
                QuantAlgo.W8A16,
                QuantAlgo.W4A16,
                QuantAlgo.W4A16_AWQ,
                QuantAlgo.W4A8_AWQ,
            ),
            NO_GPTOSS,
            without_kinds(ActivationType.IDENTITY, ActivationType.GELU, ActivationType.RELU, ActivationType.SILU),
            NO_EPLB,
            NO_SMART_ROUTER,
            divisible("num_experts", by="ep_size", reason=Reason.TOPOLOGY_UNSUPPORTED),
        ),
        activation=MoEActivationSupport(kinds=(ActivationType.SWIGLU, ActivationType.RELU2)),
        able=MoEStaticCapability(supports_cuda_graph=False),
    ),
)
