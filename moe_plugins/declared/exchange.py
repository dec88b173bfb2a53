"""Limits that several communication strategies share. Helix is refused before any candidate is asked."""

from __future__ import annotations

from moe_core.contract.declare import (
    AtLeast,
    Equals,
    FixableBy,
    NoneOf,
    Reason,
    divisible,
    is_,
    need,
)
from moe_core.contract.vocabulary import LinkKind
from moe_plugins.declared.row import Requirements

ALL_TO_ALL: Requirements = (
    need(
        Reason.TOPOLOGY_UNSUPPORTED,
        "use_dp",
        Equals(value=True),
        "without attention data parallelism every rank has every token: there is nothing to exchange",
    ),
    need(Reason.TOPOLOGY_UNSUPPORTED, "dwdp_size", Equals(value=1), "DWDP moves weights instead of tokens"),
    need(Reason.TOPOLOGY_UNSUPPORTED, "ep_size", AtLeast(value=2), "spread the experts: ep_size 2 or more"),
    need(
        Reason.TOPOLOGY_UNSUPPORTED,
        "tp_size",
        Equals(value=1),
        "use expert parallelism alone, or AllGatherReduceScatter, which sums over MoE TP",
    ),
    need(Reason.PATH_NOT_ENABLED, "allow_alltoall", Equals(value=True), "allow all-to-all"),
)
"""What every strategy but AllGatherReduceScatter needs of the deployment."""

EVEN_EXPERTS = divisible(
    "num_experts",
    by="ep_size",
    hint="use an ep_size that divides the experts, or a strategy that takes an uneven partition",
    reason=Reason.SLOTS_NOT_DIVISIBLE_BY_EP,
)
"""Upstream looks at experts, not at slots, even with EPLB."""
EVEN_SLOTS = divisible(
    "num_slots",
    by="ep_size",
    hint="use a num_slots that is a multiple of ep_size",
    reason=Reason.SLOTS_NOT_DIVISIBLE_BY_EP,
    when=(is_("eplb_enabled", True),),
)
"""The owner of a slot is slot // slots per rank."""

NO_CONSUMER_BLACKWELL = need(Reason.SM_UNSUPPORTED, "sm", NoneOf(values=(120, 121)))
ALL_NVLINK: Requirements = (
    NO_CONSUMER_BLACKWELL,
    need(
        Reason.TOPOLOGY_UNSUPPORTED,
        "link",
        Equals(value=LinkKind.NVLINK),
        "needs NVLink between all GPUs of a node",
        fixable=FixableBy.HARDWARE,
    ),
)
NVLINK_SPANS_NODES = need(
    Reason.TOPOLOGY_UNSUPPORTED,
    "num_nodes",
    Equals(value=1),
    "keep the ranks inside one NVLink domain",
    unless=(is_("plugin:trtllm.nvlink_spans_nodes", True),),
)
"""Symmetric memory cannot be shared over nodes unless NVLink spans them (multi-node NVLink racks)."""
