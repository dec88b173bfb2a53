"""TensorRT-LLM's routing: fused operators with the sizes that they take, and the reference path for the rest."""

from __future__ import annotations

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.declare import (
    AtLeast,
    AtMost,
    Conditions,
    Equals,
    NoneOf,
    Reason,
    Requirement,
    is_,
    need,
    routing_in,
)
from moe_core.contract.requirement import Condition
from moe_core.contract.vocabulary import CandidateKind, Device, FixableBy, GroupScore
from moe_core.contract.vocabulary import RoutingMethodType as Method
from moe_plugins.declared.order import PRIORITY
from moe_plugins.declared.row import Requirements

ON_CUDA = need(
    Reason.PATH_NOT_ENABLED, "device", Equals(value=Device.CUDA), "it runs on a GPU", fixable=FixableBy.HARDWARE
)
GROUPED: Conditions = (Condition(fact="num_expert_groups", test=AtLeast(value=2)),)
UNGROUPED: Conditions = (Condition(fact="num_expert_groups", test=AtMost(value=1)),)
BY_DEFINITION_UNGROUPED: Conditions = (is_("routing", Method.MINIMAX3),)


def _at_most(when: Conditions, **limits: int) -> Requirements:
    def limit(fact: str, value: int) -> Requirement:
        reason = Reason.TOPK_UNSUPPORTED if fact == "top_k" else Reason.ROUTING_UNSUPPORTED
        return need(reason, fact, AtMost(value=value), "the reference path takes any size", when=when)

    return tuple(limit(fact, value) for fact, value in limits.items())


def _routing(identity: str, title: str, *requirements: Requirement) -> MoECandidate:
    return MoECandidate(
        identity=identity,
        kind=CandidateKind.ROUTING,
        family="FUSED_ROUTING" if ON_CUDA in requirements else "TORCH_ROUTING",
        title=title,
        priority=PRIORITY[identity],
        upstream=True,
        requirements=requirements,
    )


CANDIDATES = (
    _routing(
        "trtllm.cuda.noaux_tc.any",
        "sigmoid scores, a correction bias, and the best of the best groups, in one kernel",
        routing_in(Method.DEEPSEEK_V3, Method.MINIMAX3),
        ON_CUDA,
        # That the kept groups hold at most 256 experts follows.
        *_at_most(GROUPED, top_k=8, num_experts=256, experts_per_group=32),
        *_at_most(UNGROUPED, top_k=32, num_experts=1024),
        *_at_most(BY_DEFINITION_UNGROUPED, top_k=32, num_experts=1024),
        need(Reason.ROUTING_UNSUPPORTED, "renormalize", Equals(value=True), "it always divides by the sum"),
        need(Reason.ROUTING_UNSUPPORTED, "group_score", Equals(value=GroupScore.TOP2_SUM), when=GROUPED),
    ),
    _routing(
        "trtllm.cuda.deepseek_v4_gate.any",
        "DeepSeek-V4's gate, flat or hashed, in one kernel",
        routing_in(Method.DEEPSEEK_V4),
        ON_CUDA,
    ),
    _routing(
        "trtllm.cuda.softmax_topk.any",
        "softmax and top-k in either order in one kernel",
        routing_in(Method.DEFAULT, Method.RENORMALIZE),
        ON_CUDA,
        *_at_most((), top_k=16, num_experts=512),
    ),
    _routing(
        "trtllm.torch.routing_methods.any",
        "every method but DeepSeek-V4's in torch",
        need(Reason.ROUTING_UNSUPPORTED, "routing", NoneOf(values=(Method.DEEPSEEK_V4,)), "its gate is a kernel"),
    ),
)
"""A fused operator is taken for each problem whose sizes it takes: the choice does not stick to the first call."""
