"""The declaration of moe-hello: what it computes, and within which limits. Nothing here needs torch."""

from moe_core.contract.candidate import MoEActivationSupport, MoECandidate, MoEStaticCapability
from moe_core.contract.declare import AtMost, FixableBy, Reason, dtype_in, need, no_smart_router, quant_in
from moe_core.contract.vocabulary import ActivationType, CandidateKind, DType, QuantAlgo
from moe_core.registry import Declared

HINT = "moe-hello is for tiny layers and small batches; leave the others to other backends"

PLUGIN = Declared(
    MoECandidate(
        identity="hello.torch_bmm.dense_experts.none",
        kind=CandidateKind.BACKEND,
        family="HELLO",
        title="every expert for every token, three batched multiplications",
        # Above moe_core's own torch backends: within the limits below, sorting tokens costs more than it saves.
        priority=250,
        factory="moe_hello.backend:DenseExperts",
        requirements=(
            quant_in(QuantAlgo.NONE),
            dtype_in(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16),
            need(Reason.RESOURCE_EXCEEDED, "num_experts", AtMost(value=16), HINT, fixable=FixableBy.MODEL),
            need(Reason.RESOURCE_EXCEEDED, "hidden_size", AtMost(value=128), HINT, fixable=FixableBy.MODEL),
            need(Reason.RESOURCE_EXCEEDED, "intermediate_size_per_tp", AtMost(value=128), HINT),
            need(Reason.TOKENS_OVER_CAPACITY, "max_num_tokens", AtMost(value=64), HINT),
            no_smart_router(),
        ),
        capabilities=MoEStaticCapability(
            supports_expert_bias=True, supports_non_divisible_ep=True, supports_uneven_tp=True
        ),
        activation=MoEActivationSupport(
            kinds=tuple(ActivationType), constants=("alpha", "beta", "clamp"), clamp_after_silu=True
        ),
        tolerance=6e-3,
    )
)
