"""The forward of a layer on one rank when nothing but rows and logits is given: routing and experts as one call.

What a plan, a scheduler and its hooks decide for such a forward depends on the number of rows alone. So it is decided
once for each, and from then on costs the host a lookup.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from moe_core.assembly import Bound
from moe_core.communication import Communication
from moe_core.communication.base import Phase
from moe_core.contract.plan import ForwardPlan
from moe_core.contract.report import MoEResolutionReport
from moe_core.resolve import InfeasibleWorkloadError, plan_forward
from moe_core.routing import Route, Router
from moe_core.schedule.abilities import JoinsRouting, RoutedCall

MOST: Final = 1024
"""Numbers of rows that are kept."""


class Shortcut:
    """Answers what it can, and leaves the rest to the scheduler. For layers of one rank without a load balancer."""

    def __init__(
        self,
        report: MoEResolutionReport,
        made: Mapping[str, Bound],
        strategies: Mapping[str, Communication],
        router: Router,
    ) -> None:
        self._report, self._made, self._strategies, self._router = report, made, strategies, router
        self._width, self._num_experts = report.problem.hidden_size, report.problem.num_experts
        self._hashed = bool(report.problem.hashed_routing)
        self._weighs_input = report.problem.apply_router_weight_on_input is not False
        self._route: Route = router.route
        self._calls: dict[int, tuple[RoutedCall, Communication] | None] = {}

    def __call__(self, x_TH: torch.Tensor, logits_TE: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
        """The layer's output; ``None``: the scheduler has to be asked. `dtype` is that of the layer."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return None
        if self._router.route is not self._route:
            self._route = self._router.route
            self._calls.clear()
        shape = x_TH.shape
        try:
            found = self._calls[shape[0]]
        except KeyError:
            found = self._calls[shape[0]] = self._planned(shape[0])
            if len(self._calls) > MOST:
                del self._calls[next(iter(self._calls))]
        if found is None:
            return None
        call, comm = found
        fits = len(shape) == 2 and shape[1] == self._width and logits_TE.shape == (shape[0], self._num_experts)
        is_plain = fits and x_TH.dtype is dtype and x_TH.is_contiguous() and logits_TE.is_contiguous()
        if not is_plain or x_TH.get_device() != logits_TE.get_device() or comm.phase is not Phase.IDLE:
            return None
        return call(x_TH, logits_TE, self._router.bias_now)

    def _planned(self, num_rows: int) -> tuple[RoutedCall, Communication] | None:
        if not num_rows or self._hashed or self._weighs_input:
            return None
        try:
            plan = plan_forward(self._report, (num_rows,))
        except (ValueError, InfeasibleWorkloadError):
            return None  # the scheduler says what is wrong
        comm = self._strategies.get(plan.communication or "")
        backend = self._made[plan.backend].backend
        if comm is None or not comm.moves_nothing or not _is_simple(plan) or not isinstance(backend, JoinsRouting):
            return None
        call = backend.joined(self._route)
        return None if call is None else (call, comm)


def _is_simple(plan: ForwardPlan) -> bool:
    return len(plan.chunks) == 1 and not plan.degradations
