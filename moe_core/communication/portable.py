"""A strategy around an exchange that runs on any process group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

import torch

from moe_core.communication.base import Communication, Dispatched, checked_counts
from moe_core.communication.wire import Wire
from moe_core.execution import BindError, Binding


class Exchange(Protocol):
    """Moves rows to the ranks that hold their slots, and sums of answers back."""

    def __init__(self, wire: Wire, binding: Binding, *, fixed: bool) -> None: ...

    def max_rows(self, most: int) -> int:
        """Most rows that a rank receives when no rank brings more than `most`."""

    def dispatch(self, rows: Dispatched, most: int) -> Dispatched:
        """Rows of every rank for this rank's slots; `most` is the largest number of rows that a rank brings."""

    def combine(self, y: torch.Tensor) -> torch.Tensor:
        """The sum of the answers to each of this rank's rows, ``[T, H]``."""


class PortableStrategy(Communication):
    """As many rows as there are on a CPU; on a GPU, where the host must not wait to learn that, a fixed share."""

    exchange: ClassVar[type[Exchange]]

    def __init__(self, binding: Binding) -> None:
        super().__init__(binding)
        name = type(self).__name__
        if self.groups.group is None:
            raise BindError(f"{name} needs the process group of the layer's ranks; give groups")
        if self.groups.ep_rank != self.groups.rank:
            raise BindError(
                f"{name} sends rows to the rank of the group that is the slots' EP rank, and rank {self.groups.rank} "
                f"has ep_rank {self.groups.ep_rank}; order the group by EP rank"
            )
        self._wire = Wire(self.groups.group)
        self._exchange = self.exchange(self._wire, binding, fixed=binding.device.type == "cuda")
        self._is_empty = False

    def max_rows(self, all_rank_num_tokens: Sequence[int]) -> int:
        """What the exchange can deliver to a rank, whatever the routes."""
        return self._exchange.max_rows(max(all_rank_num_tokens))

    def _dispatch(self, rows: Dispatched, all_rank_num_tokens: Sequence[int]) -> Dispatched:
        counts = checked_counts(all_rank_num_tokens, self._wire.num_ranks, self.groups.rank, len(rows.x))
        self._is_empty = not any(counts)
        return rows if self._is_empty else self._exchange.dispatch(rows, max(counts))

    def _combine(self, y: torch.Tensor) -> torch.Tensor:
        return y if self._is_empty else self._exchange.combine(y)
