"""Pure selection: problem, deployment, request, candidates and evidence in; report out."""

from moe_core.resolve.evaluate import can_implement
from moe_core.resolve.resolver import resolve_moe_impl
from moe_core.resolve.selector import UnknownRequestError

__all__ = ["UnknownRequestError", "can_implement", "resolve_moe_impl"]
