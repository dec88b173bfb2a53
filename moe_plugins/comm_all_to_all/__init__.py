"""All-to-all: a token goes once to each rank that holds one of its experts. Any process group, any number of ranks."""

from __future__ import annotations

from moe_core.contract.candidate import MoECandidate, MoEStaticCapability
from moe_core.contract.declare import moves_tokens_to_experts
from moe_core.contract.vocabulary import CandidateKind

CANDIDATES = (
    MoECandidate(
        identity="moe_core.collective.all_to_all.any",
        kind=CandidateKind.COMMUNICATION,
        family="ALLTOALL",
        title="a row for each rank that serves the token, over torch.distributed",
        priority=1004,  # between AllGatherReduceScatter and the strategies of kernel libraries
        factory="moe_plugins.comm_all_to_all.strategy:AllToAll",
        requirements=moves_tokens_to_experts(),
        capabilities=MoEStaticCapability(supports_graph_padding_trim=True),
    ),
)
