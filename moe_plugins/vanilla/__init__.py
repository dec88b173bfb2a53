"""The reference loop: one expert after another in plain torch. Runs everywhere, is fast nowhere, never degrades."""

from moe_core.contract.candidate import MoEActivationSupport, MoECandidate, MoEStaticCapability
from moe_core.contract.declare import dtype_in, no_smart_router, quant_in
from moe_core.contract.vocabulary import ActivationType, CandidateKind, DType, QuantAlgo

CANDIDATES = (
    MoECandidate(
        identity="moe_core.torch.reference_loop.any",
        kind=CandidateKind.BACKEND,
        family="VANILLA",
        title="one expert after another, plain torch, any device",
        priority=100,
        factory="moe_plugins.vanilla.backend:ReferenceLoop",
        requirements=(
            quant_in(QuantAlgo.NONE),
            dtype_in(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16),
            no_smart_router(),
        ),
        capabilities=MoEStaticCapability(
            supports_expert_bias=True,
            supports_apply_router_weight_on_input=True,
            supports_non_divisible_ep=True,
            supports_uneven_tp=True,
            supports_cuda_graph=False,  # the loop asks the device how many rows each expert has
        ),
        activation=MoEActivationSupport(
            kinds=tuple(ActivationType), constants=("alpha", "beta", "clamp"), clamp_after_silu=True
        ),
        tolerance=8e-3,
    ),
)
