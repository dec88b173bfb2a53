"""Where a load balancer is called in a forward."""

from __future__ import annotations

from typing import Final, Protocol

import torch


class LayerBalancer(Protocol):
    """The load balancer of one layer: counts routed experts, maps them to slots, and moves weights between forwards.

    Between ``done_wait_gpu`` and ``start_set_cpu`` of a forward its slots hold what they say. ``is_first`` and
    ``is_last`` are about all calls of one iteration: every chunk of every repeat of the layer.
    """

    @property
    def repeat_count(self) -> int:
        """How often the layer runs in one iteration."""

    def start_wait_gpu(self, is_first: bool) -> None:
        """Begin to wait until weights are at rest."""

    def done_wait_gpu(self, is_first: bool) -> None:
        """Weights are at rest once this returns."""

    def update_statistic(self, ids_TK: torch.Tensor, *, is_first: bool, is_last: bool, ignore_allreduce: bool) -> None:
        """Count expert ids int32 ``[T, K]``, negative ones left out.

        Counts are reduced over ranks on the last call, unless the exchange gathers them (`ignore_allreduce`).
        """

    def local_statistic(self) -> torch.Tensor | None:
        """This rank's counts, int32 ``[E]``, for an exchange that gathers them; ``None``: nothing is counted."""

    def update_gathered_statistic(self, counts_RE: torch.Tensor) -> None:
        """Every rank's counts, int32 ``[ranks, E]``."""

    def route(self, ids_TK: torch.Tensor, use_dp: bool) -> torch.Tensor:
        """Slots int32 ``[T, K]`` that serve these experts; ranks with tokens of their own start at other replicas."""

    def start_set_cpu(self, is_last: bool) -> None:
        """Weights may move again."""

    def done_set_cpu(self, is_last: bool) -> None:
        """This forward is over."""


class _NoBalancer:
    """Experts stay where they are: slots are experts."""

    repeat_count = 1

    def start_wait_gpu(self, is_first: bool) -> None: ...

    def done_wait_gpu(self, is_first: bool) -> None: ...

    def update_statistic(
        self, ids_TK: torch.Tensor, *, is_first: bool, is_last: bool, ignore_allreduce: bool
    ) -> None: ...

    def local_statistic(self) -> None: ...

    def update_gathered_statistic(self, counts_RE: torch.Tensor) -> None: ...

    def route(self, ids_TK: torch.Tensor, use_dp: bool) -> torch.Tensor:
        return ids_TK

    def start_set_cpu(self, is_last: bool) -> None: ...

    def done_set_cpu(self, is_last: bool) -> None: ...


def pass_by(balancer: LayerBalancer, nobody_0K: torch.Tensor, *, is_first: bool, is_last: bool) -> None:
    """The hooks of a call in which no rank has a token: nothing is computed, but the iteration goes on."""
    balancer.start_wait_gpu(is_first)
    balancer.done_wait_gpu(is_first)
    balancer.update_statistic(nobody_0K, is_first=is_first, is_last=is_last, ignore_allreduce=False)
    balancer.start_set_cpu(is_last)
    balancer.done_set_cpu(is_last)


NO_BALANCER: Final[LayerBalancer] = _NoBalancer()
"""Every hook does nothing, and slots are experts."""
