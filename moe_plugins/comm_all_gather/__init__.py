"""AllGatherReduceScatter: every rank gets every row. It serves every shape, with MoE TP too, and moves the most."""

from __future__ import annotations

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.declare import Equals, Reason, need
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
        requirements=(
            need(
                Reason.TOPOLOGY_UNSUPPORTED,
                "use_dp",
                Equals(value=True),
                "without attention data parallelism every rank has every token: there is nothing to exchange",
            ),
            need(Reason.TOPOLOGY_UNSUPPORTED, "dwdp_size", Equals(value=1), "DWDP moves weights instead of tokens"),
        ),
    ),
)
