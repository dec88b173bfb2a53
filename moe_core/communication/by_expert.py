"""A token goes to each of its experts by itself, and every expert's answer comes back to be weighed at home."""

from __future__ import annotations

from typing import Final

import torch

from moe_core.communication.base import Dispatched
from moe_core.communication.by_rank import sum_answers
from moe_core.communication.legs import Legs, legs_of, owners, rows_in_order
from moe_core.communication.rows import RowBytes, as_bytes, from_bytes
from moe_core.communication.wire import Wire
from moe_core.execution import Binding

SLOT_BYTES: Final = 4


class ExpertExchange:
    """Rows by expert, ``[slots of this rank, ranks * most]`` of them flattened, one id each.

    A row that nobody sent is zeros, with an id of `num_slots`. Scales are ones: experts do not weigh, combine does, in
    float32 and in the order in which the token chose its experts. A token that names a slot twice is sent there once,
    so a slot never receives more rows than all ranks have tokens.
    """

    def __init__(self, wire: Wire, binding: Binding, *, fixed: bool) -> None:
        self._wire, self._binding, self._fixed = wire, binding, fixed
        self._slot_ends_R = torch.tensor(binding.slot_ends, dtype=torch.int32, device=binding.device)
        self._legs: Legs | None = None
        self._scales_TK: torch.Tensor
        self._place_N: torch.Tensor

    def max_rows(self, most: int) -> int:
        """Most rows that a rank receives when no rank brings more than `most`."""
        return self._binding.num_local_slots * self._wire.num_ranks * most

    def dispatch(self, rows: Dispatched, most: int) -> Dispatched:
        """Rows of every rank for this rank's slots; `most` is the largest number of rows that a rank brings."""
        binding, ranks, slots_TK = self._binding, self._wire.num_ranks, rows.token_selected_slots
        # Of the slots that a rank may hold, a token names at most K.
        share = most * min(slots_TK.shape[1], -(-binding.num_slots // ranks)) if self._fixed else None
        owner_TK = owners(slots_TK, self._slot_ends_R)
        self._legs = legs = legs_of(owner_TK, slots_TK, ranks, share=share, is_shared=True)
        self._scales_TK = rows.token_final_scales
        form = RowBytes((rows.x, rows.x_sf))
        slot_S = torch.cat([slots_TK.flatten(), slots_TK.new_full((1,), -1)])[legs.pair_S]
        rows_SB = form.pack((rows.x, rows.x_sf))[legs.token_S]
        received_NB = self._wire.send(torch.cat([rows_SB, as_bytes(slot_S)], dim=1), legs)
        slot_N = from_bytes(received_NB[:, -SLOT_BYTES:], torch.int32).flatten()
        row_C = self._place(slot_N, ranks * most)
        blank = received_NB.new_zeros(1, received_NB.shape[1])
        x, x_sf = form.unpack(torch.cat([received_NB, blank])[row_C, :-SLOT_BYTES])
        assert x is not None
        own_C = torch.arange(binding.slot_start, binding.slot_end, device=slot_N.device).repeat_interleave(ranks * most)
        ids_C1 = torch.where(row_C < len(slot_N), own_C, binding.num_slots).int().unsqueeze(1)
        return Dispatched(x, x_sf, ids_C1, torch.ones_like(ids_C1, dtype=rows.token_final_scales.dtype))

    def combine(self, y_CH: torch.Tensor) -> torch.Tensor:
        """The weighted sum over experts for each of this rank's rows, ``[T, H]``."""
        legs, self._legs = self._legs, None
        assert legs is not None, "combine follows dispatch"
        # Answers to rows that fill up are never read: any will do.
        answers_NH = y_CH[self._place_N.clamp(max=max(len(y_CH) - 1, 0))]
        return sum_answers(self._wire.send_back(answers_NH), legs.row_TK, self._scales_TK)

    def _place(self, slot_N: torch.Tensor, capacity: int) -> torch.Tensor:
        """Received row of each place ``slot * capacity + i``, N where it is empty; and remember the way back."""
        start, end, num_local = self._binding.slot_start, self._binding.slot_end, self._binding.num_local_slots
        is_local_N = (slot_N >= start) & (slot_N < end)
        local_P, row_P = torch.sort(torch.where(is_local_N, slot_N - start, num_local).long(), stable=True)
        place_P, num_places, _ = rows_in_order(local_P, num_local, capacity)
        self._place_N = torch.empty_like(row_P).scatter_(0, row_P, place_P)
        return row_P.new_full((num_places + 1,), len(slot_N)).scatter_(0, place_P, row_P)[:num_places]
