"""Token exchange between the ranks of a layer."""

from moe_core.communication.base import Communication, Dispatched

__all__ = ["Communication", "Dispatched"]
