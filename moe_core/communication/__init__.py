"""Token exchange between the ranks of a layer: what every strategy is, and exchanges that run on any process group."""

from moe_core.communication.base import Communication, Dispatched, checked_counts
from moe_core.communication.by_expert import ExpertExchange
from moe_core.communication.by_rank import RankExchange
from moe_core.communication.joining import joined, refuse_gradients
from moe_core.communication.portable import PortableStrategy
from moe_core.communication.wire import Wire

__all__ = [
    "Communication",
    "Dispatched",
    "checked_counts",
    "joined",
    "refuse_gradients",
    "PortableStrategy",
    "ExpertExchange",
    "RankExchange",
    "Wire",
]
