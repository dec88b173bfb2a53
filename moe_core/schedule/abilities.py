"""What a backend may be able to do beyond :class:`~moe_core.execution.MoEBackend`; having the method is the claim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch

from moe_core.execution import MoERunContext
from moe_core.routing import Route


class UnfinalizedOutput(NamedTuple):
    """Expert outputs that nobody has weighed and summed yet, for a model that fuses that with what comes next."""

    gemm2_output: torch.Tensor
    """``[rows, H]``, in order of expert."""
    expert_weights: torch.Tensor | None
    """May be uninitialized; not to be read."""
    expanded_idx_to_permuted_idx: torch.Tensor
    """Row of each (token, k) pair: N * K entries, ``[N, K]`` or flat."""


class UnfinalizedCombine(Protocol):
    """The model's own weighing and summing; a function of one (token, expert) row at a time."""

    def __call__(
        self,
        *,
        gemm2_output: torch.Tensor,
        expanded_idx_to_permuted_idx: torch.Tensor,
        routing_weights: torch.Tensor,
        num_tokens: int,
    ) -> torch.Tensor:
        """``[num_tokens, H]``; zero tokens are legal."""


class RoutedAndQuantized(NamedTuple):
    """What a fused routing and quantization gives."""

    ids: torch.Tensor
    scales: torch.Tensor
    x: torch.Tensor
    x_sf: torch.Tensor | None


@runtime_checkable
class FusesRouteQuant(Protocol):
    """Routes and quantizes in one kernel."""

    def try_fused_route_quant(self, x: torch.Tensor, router_logits: torch.Tensor) -> RoutedAndQuantized | None:
        """Ids int32 ``[T, K]``, scales float32 ``[T, K]`` and quantized rows; ``None``: not for these inputs."""


@runtime_checkable
class RoutesInKernel(Protocol):
    """Routes inside its expert kernel, from logits; only where no strategy needs to know the routes."""

    def run_from_logits(self, x: torch.Tensor, x_sf: torch.Tensor | None, router_logits: torch.Tensor) -> torch.Tensor:
        """The weighted sum per row, ``[T, H]``."""


RoutedCall: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Rows ``[T, H]``, router logits ``[T, E]`` and correction bias ``[E]`` to the weighted sum per row ``[T, H]``, T > 0.
Rows and logits are contiguous, and no gradients are wanted."""


@runtime_checkable
class JoinsRouting(Protocol):
    """Can call a router and its own kernels as one, for less of the host's time than one after the other."""

    def joined(self, route: Route) -> RoutedCall | None:
        """Routing by `route` and the experts, without anything between them; ``None``: not with this `route`."""


@runtime_checkable
class LeavesUnfinalized(Protocol):
    """Can leave weighing and summing to others."""

    def run_unfinalized(self, context: MoERunContext) -> UnfinalizedOutput:
        """Expert outputs as they are."""


@runtime_checkable
class NeedsWorkspace(Protocol):
    """Writes into memory that outlives a call, one piece for each call that may run at the same time."""

    def get_workspaces(self, num_rows: Sequence[int]) -> Sequence[Any]:
        """A workspace for at most ``num_rows[i]`` rows each."""
