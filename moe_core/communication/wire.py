"""Rows to other ranks and back."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from moe_core.communication.legs import Legs
from moe_core.communication.rows import as_bytes


class Wire:
    """All-to-all of rows over a group, in one of two forms.

    With a fixed share every pair of ranks exchanges the same number of rows, filled up where there are fewer: nothing
    depends on the routes, so it can be captured in a CUDA graph. Otherwise as many rows travel as there are, which the
    host has to know. Without a group there is one rank, which keeps its rows.
    """

    def __init__(self, group: ProcessGroup | None) -> None:
        self._group = group
        self._sent: list[int] | None = None
        self._received: list[int] | None = None

    @property
    def num_ranks(self) -> int:
        """Ranks that exchange rows."""
        return 1 if self._group is None else dist.get_world_size(self._group)

    def send(self, rows_SB: torch.Tensor, legs: Legs) -> torch.Tensor:
        """Rows of every rank for this one, in order of source: uint8 ``[N, B]``."""
        self._sent = legs.splits
        self._received = None if legs.splits is None else self._counts(legs.splits, rows_SB.device)
        return self._exchange(rows_SB, self._sent, self._received)

    def send_back(self, rows_NH: torch.Tensor) -> torch.Tensor:
        """The answers to this rank's rows, ``[S, H]``, from every rank's answers to the rows that it received."""
        answers = self._exchange(as_bytes(rows_NH), self._received, self._sent)
        return answers.view(rows_NH.dtype)

    def _counts(self, splits: list[int], device: torch.device) -> list[int]:
        if self._group is None:
            return splits
        sent = torch.tensor(splits, device=device)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self._group)
        counts: list[int] = received.tolist()
        return counts

    def _exchange(self, rows: torch.Tensor, sent: list[int] | None, received: list[int] | None) -> torch.Tensor:
        if self._group is None:
            return rows
        result = rows.new_empty(rows.shape[0] if received is None else sum(received), *rows.shape[1:])
        dist.all_to_all_single(result, rows.contiguous(), received, sent, group=self._group)
        return result
