"""Routing in plain torch: every method, any device. The twin of every fused routing kernel."""

from __future__ import annotations

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.vocabulary import CandidateKind

CANDIDATES = (
    MoECandidate(
        identity="moe_core.torch.select_experts.any",
        kind=CandidateKind.ROUTING,
        family="TORCH_ROUTING",
        title="score, choose and weigh in plain torch",
        priority=100,
        factory="moe_plugins.routing_torch.router:TorchRouter",
    ),
)
