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
        priority=996,  # on GPUs its fixed share moves as many rows as AllGatherReduceScatter (1000), and indexes them
        factory="moe_plugins.comm_all_to_all.strategy:AllToAll",
        requirements=moves_tokens_to_experts(),
        capabilities=MoEStaticCapability(supports_graph_padding_trim=True),
    ),
)
