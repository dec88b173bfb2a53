"""The portable form of a kernel that exchanges tokens itself: dispatch, experts and combine behind one call."""

from __future__ import annotations

from moe_core.contract.candidate import MoEActivationSupport, MoECandidate, MoEStaticCapability
from moe_core.contract.declare import Reason, SameAs, dtype_in, moves_tokens_to_experts, need, quant_in
from moe_core.contract.vocabulary import ActivationType, CandidateKind, DType, QuantAlgo, SchedulerKind

CANDIDATES = (
    MoECandidate(
        identity="moe_core.torch.fused_all_to_all.none",
        kind=CandidateKind.BACKEND,
        family="FUSED_ALLTOALL",
        title="all-to-all and the float32 reference behind one call: the slow twin of kernels that do both",
        priority=10,
        factory="moe_plugins.fused_all_to_all.backend:FusedAllToAll",
        scheduler_kind=SchedulerKind.FUSED_COMM,
        requirements=(
            quant_in(QuantAlgo.NONE),
            dtype_in(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16),
            *moves_tokens_to_experts(),
            need(
                Reason.TOPOLOGY_UNSUPPORTED,
                "ep_size",
                SameAs(fact="parallel_size"),
                "spread the experts over every rank: ep_size equal to the world",
            ),
        ),
        capabilities=MoEStaticCapability(
            supports_graph_padding_trim=True,
            supports_expert_bias=True,
            supports_non_divisible_ep=True,
            supports_cuda_graph=False,  # the reference asks the device which rows an expert has
        ),
        activation=MoEActivationSupport(
            kinds=tuple(ActivationType), constants=("alpha", "beta", "clamp"), clamp_after_silu=True
        ),
        tolerance=8e-3,
    ),
)
