"""No token exchange: every rank has every token, and at most an all-reduce sums what the ranks computed."""

from __future__ import annotations

from moe_core.contract.candidate import MoECandidate, MoEStaticCapability
from moe_core.contract.declare import AtLeast, Equals, Reason, need
from moe_core.contract.requirement import Condition
from moe_core.contract.vocabulary import CandidateKind

CANDIDATES = (
    MoECandidate(
        identity="moe_core.local.no_exchange.any",
        kind=CandidateKind.COMMUNICATION,
        family="NONE",
        title="no token exchange",
        priority=100,
        factory="moe_plugins.comm_none.strategy:NoExchange",
        capabilities=MoEStaticCapability(supports_graph_padding_trim=True),
        requirements=(
            need(
                Reason.TOPOLOGY_UNSUPPORTED,
                "use_dp",
                Equals(value=False),
                "with attention data parallelism ranks hold different tokens, which must be exchanged",
                # DWDP brings every expert to every rank instead.
                unless=(Condition(fact="dwdp_size", test=AtLeast(value=2)),),
            ),
            need(
                Reason.EPLB_UNSUPPORTED,
                "eplb_enabled",
                Equals(value=False),
                "EPLB needs attention data parallelism and an exchange that carries slot ids",
            ),
        ),
    ),
)
