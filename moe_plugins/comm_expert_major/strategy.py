"""Rows by expert, over torch.distributed."""

from moe_core.communication import ExpertExchange, PortableStrategy


class ExpertMajor(PortableStrategy):
    """Every slot has room for a row of each token of every rank: for decoding, where those are few."""

    exchange = ExpertExchange
