"""A token goes once to each rank that holds one of its experts, and its sum over them comes back."""

from __future__ import annotations

import torch

from moe_core.communication.base import Dispatched
from moe_core.communication.legs import Legs, legs_of, owners
from moe_core.communication.rows import RowBytes
from moe_core.communication.wire import Wire
from moe_core.execution import Binding


class RankExchange:
    """Rows by rank. The experts weigh and sum over their own experts; combine adds up the ranks' sums.

    Rows are delivered in order of source rank, tokens of a rank in their own order; with fixed shares
    ``[ranks * most, …]``, where rows that nobody sent are zeros with ids of -1. A sum is taken in float32, in the order
    in which the token chose the ranks, so it is the same from run to run and whatever else is in the batch.
    """

    def __init__(self, wire: Wire, binding: Binding, *, fixed: bool) -> None:
        self._wire, self._fixed = wire, fixed
        self._slot_ends_R = torch.tensor(binding.slot_ends, dtype=torch.int32, device=binding.device)
        self._legs: Legs | None = None

    def max_rows(self, most: int) -> int:
        """Most rows that a rank receives when no rank brings more than `most`."""
        return self._wire.num_ranks * most

    def dispatch(self, rows: Dispatched, most: int) -> Dispatched:
        """Rows of every rank for this rank's slots; `most` is the largest number of rows that a rank brings."""
        ranks = self._wire.num_ranks
        owner_TK = owners(rows.token_selected_slots, self._slot_ends_R)
        share = most if self._fixed else None
        self._legs = legs_of(owner_TK, owner_TK, ranks, share=share, is_shared=False)
        form = RowBytes(rows)
        packed = form.pack(rows, ids_at=2)
        x, x_sf, slots, scales = form.unpack(self._wire.send(packed[self._legs.token_S], self._legs))
        assert x is not None
        assert slots is not None
        assert scales is not None
        return Dispatched(x, x_sf, slots, scales)

    def combine(self, y_NH: torch.Tensor) -> torch.Tensor:
        """The sum over ranks for each of this rank's rows, ``[T, H]``."""
        legs, self._legs = self._legs, None
        assert legs is not None, "combine follows dispatch"
        return sum_answers(self._wire.send_back(y_NH), legs.row_TK, None)


def sum_answers(y_SH: torch.Tensor, row_TK: torch.Tensor, scales_TK: torch.Tensor | None) -> torch.Tensor:
    """``sum_k scales[t, k] * y[row[t, k]]``, in float32 and in order of k, in the element type of `y_SH`.

    A pair whose row is S adds exactly zero, whatever its scale is.
    """
    num_rows = y_SH.shape[0]
    y_SH = torch.cat([y_SH, y_SH.new_zeros(1, y_SH.shape[1])])
    if scales_TK is not None:
        scales_TK = torch.where(row_TK < num_rows, scales_TK.float(), 0.0)
    total_TH = torch.zeros(row_TK.shape[0], y_SH.shape[1], dtype=torch.float32, device=y_SH.device)
    for k in range(row_TK.shape[1]):
        answer_TH = y_SH[row_TK[:, k]].float()
        total_TH += answer_TH if scales_TK is None else answer_TH * scales_TK[:, k, None]
    return total_TH.to(y_SH.dtype)
