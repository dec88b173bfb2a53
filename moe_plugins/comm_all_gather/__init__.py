"""AllGatherReduceScatter: every rank gets every row. It serves every shape, with MoE TP too, and moves the most."""

from __future__ import annotations

from moe_core.contract.candidate import MoECandidate, MoEStaticCapability
from moe_core.contract.declare import moves_tokens
from moe_core.contract.vocabulary import CandidateKind

CANDIDATES = (
    MoECandidate(
        identity="trtllm.collective.all_gather_reduce_scatter.any",
        kind=CandidateKind.COMMUNICATION,
        family="ALLGATHER",
        title="AllGatherReduceScatter: all-gather before the experts, reduce-scatter after",
        priority=1000,
        upstream=True,
        factory="moe_plugins.comm_all_gather.strategy:AllGatherReduceScatter",
        requirements=moves_tokens(),
        capabilities=MoEStaticCapability(supports_graph_padding_trim=True),
    ),
)
