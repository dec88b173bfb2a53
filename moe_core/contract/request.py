"""What was asked for: a backend, a communication strategy, bans, and whether stepping down is allowed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from moe_core.contract.base import SCHEMA_VERSION, Frozen
from moe_core.contract.vocabulary import LayerRole, QuantAlgo, RequestedBy

AUTO = "auto"


class ScopedRequest(Frozen):
    """A request for some layers only. A field that is ``None`` does not narrow the scope, or does not ask."""

    layers: str | None = None
    """Layer indices: ``3``, ``0-2``, ``4-``, or several with commas."""
    role: LayerRole | None = None
    quant: QuantAlgo | None = None
    backend: str | None = None
    communication: str | None = None


class MoERequest(Frozen):
    """What to resolve for.

    `backend` and `communication` are ``auto``, a family, an identity, or a query: identity segments in any order
    joined by dots, with ``*`` for any. An identity or the family VANILLA is never degraded.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    backend: str = AUTO
    communication: str = AUTO
    backend_requested_by: RequestedBy = RequestedBy.AUTO
    communication_requested_by: RequestedBy = RequestedBy.AUTO
    allow_degradation: bool = True
    bans: tuple[str, ...] = ()
    """Identities, families or distributions, in any case."""
    upstream: bool = False
    """Only TensorRT-LLM's own rows, whether or not an adapter is installed, with CUTLASS as the fallback."""
    require_adapter: bool = True
    """Refuse candidates that no installed plugin can run."""
    token_buckets: tuple[Annotated[int, Field(gt=0)], ...] = ()
    """Upper token counts per rank for which to decide separately; empty: one decision for all."""
    scopes: tuple[ScopedRequest, ...] = ()
    """Requests for some layers; the last one that applies wins."""
