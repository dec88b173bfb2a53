"""Routing in Triton: every method in one launch. The twin takes the sizes that this does not."""

from __future__ import annotations

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.declare import AtMost, Equals, Reason, need, package, sm_at_least
from moe_core.contract.gates import CAN_JIT
from moe_core.contract.vocabulary import CandidateKind, Device, FixableBy

ONE_ROW = "a warp holds a token's scores in its registers; the twin takes any size"

CANDIDATES = (
    MoECandidate(
        identity="moe_core.triton.select_experts.any",
        kind=CandidateKind.ROUTING,
        family="TRITON_ROUTING",
        title="score, choose and weigh in one Triton kernel",
        priority=200,
        factory="moe_plugins.triton_moe.router:TritonRouter",
        requirements=(
            need(
                Reason.PATH_NOT_ENABLED, "device", Equals(value=Device.CUDA), "it runs on a GPU",
                fixable=FixableBy.HARDWARE,
            ),
            sm_at_least(80),
            package("triton", at_least="3.6"),
            CAN_JIT,
            need(Reason.ROUTING_UNSUPPORTED, "num_experts", AtMost(value=1024), ONE_ROW),
            need(Reason.TOPK_UNSUPPORTED, "top_k", AtMost(value=32), ONE_ROW),
        ),
    ),
)  # fmt: skip
