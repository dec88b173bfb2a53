"""Expert-major exchange: a token goes to each of its experts by itself, and combine weighs. For few tokens."""

from __future__ import annotations

from moe_core.contract.candidate import MoECandidate, MoEStaticCapability
from moe_core.contract.declare import moves_tokens_to_experts
from moe_core.contract.vocabulary import CandidateKind, TokenLayout

CANDIDATES = (
    MoECandidate(
        identity="moe_core.collective.expert_major.any",
        kind=CandidateKind.COMMUNICATION,
        family="EXPERT_MAJOR",
        title="a row for each expert of the token, grouped by expert, over torch.distributed",
        priority=994,  # a row for each pair of token and expert: more than the others move
        factory="moe_plugins.comm_expert_major.strategy:ExpertMajor",
        requirements=moves_tokens_to_experts(),
        capabilities=MoEStaticCapability(supports_graph_padding_trim=True),
        layouts=(TokenLayout.EXPERT_MAJOR,),
        finalize_before_combine=False,
        bounded_tokens=True,  # a slot has room for every token of every rank
    ),
)
