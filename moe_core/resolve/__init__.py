"""Pure selection: problem, deployment, request, candidates and evidence in; report out."""

from moe_core.resolve.evaluate import can_implement
from moe_core.resolve.model import resolve_model
from moe_core.resolve.neighbours import legal_neighbours
from moe_core.resolve.plan import InfeasibleWorkloadError, plan_forward, strategies_of
from moe_core.resolve.resolver import resolve_moe_impl
from moe_core.resolve.selector import UnknownRequestError

__all__ = [
    "InfeasibleWorkloadError",
    "UnknownRequestError",
    "can_implement",
    "legal_neighbours",
    "plan_forward",
    "resolve_model",
    "resolve_moe_impl",
    "strategies_of",
]
