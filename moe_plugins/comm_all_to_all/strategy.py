"""Rows by rank, over torch.distributed."""

from moe_core.communication import PortableStrategy, RankExchange


class AllToAll(PortableStrategy):
    """A token goes once to each rank that holds one of its experts."""

    exchange = RankExchange
