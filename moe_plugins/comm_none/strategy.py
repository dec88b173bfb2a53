"""No token exchange: every rank has every token, or there is one rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from moe_core.communication import Communication, Dispatched


class NoExchange(Communication):
    """Dispatch changes nothing. Combine sums the ranks' partial outputs, in place, where there are several."""

    inference_only = False

    @property
    def moves_nothing(self) -> bool:
        """Whether there is one rank."""
        return self.groups.group is None

    def _dispatch(self, rows: Dispatched, all_rank_num_tokens: Sequence[int]) -> Dispatched:
        return rows

    def _combine(self, y: torch.Tensor) -> torch.Tensor:
        if self.groups.group is not None:
            dist.all_reduce(y, group=self.groups.group)
        return y
