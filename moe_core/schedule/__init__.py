"""Schedulers: they execute a plan in a fixed order, and decide nothing.

Two, with opposite invariants. The external one moves tokens through a strategy: it keeps padding until the end, lets a
rank without rows repeat its first chunk, and may overlap chunks. The fused one leaves the exchange to the backend: it
strips padding first, launches every chunk on every rank with no rows if need be, and never overlaps.
"""

from moe_core.schedule.balancer import NO_BALANCER, LayerBalancer
from moe_core.schedule.external import ExternalCommMoEScheduler
from moe_core.schedule.fused import FusedCommMoEScheduler
from moe_core.schedule.inputs import ForwardInputs, Repeats, Turn
from moe_core.schedule.parts import LayerParts

__all__ = [
    "ExternalCommMoEScheduler",
    "FusedCommMoEScheduler",
    "ForwardInputs",
    "Repeats",
    "Turn",
    "LayerParts",
    "LayerBalancer",
    "NO_BALANCER",
]
