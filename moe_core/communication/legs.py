"""Where each (token, expert) pair goes: the rows to send, in order of destination, without a host synchronization."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch


@dataclass(frozen=True, slots=True)
class Legs:
    """Rows to send, S of them, for the pairs of a batch; several pairs may share a row."""

    row_TK: torch.Tensor
    """int64: the row whose answer a pair reads; S for pairs that read none."""
    pair_S: torch.Tensor
    """int64: the pair ``token * K + k`` that a row is sent for; T * K for rows that fill up a destination's share."""
    splits: list[int] | None
    """Rows for each destination; ``None``: as many for every one."""

    @property
    def token_S(self) -> torch.Tensor:
        """int64: the token of each row; T for rows that fill up."""
        return self.pair_S // max(self.row_TK.shape[1], 1)


def owners(slots_TK: torch.Tensor, slot_ends_R: torch.Tensor) -> torch.Tensor:
    """int64 ``[T, K]``: the rank that holds each slot, R (nobody) for ids outside ``[0, slots)``.

    `slot_ends_R` has one past the last slot of each rank.
    """
    owner_TK = torch.searchsorted(slot_ends_R, slots_TK, right=True)
    return torch.where(slots_TK < 0, len(slot_ends_R), owner_TK)


def legs_of(
    owner_TK: torch.Tensor, key_TK: torch.Tensor, num_ranks: int, *, share: int | None, is_shared: bool
) -> Legs:
    """One row for each different key of a token.

    Args:
        owner_TK: destination of each pair; `num_ranks` for none.
        key_TK: pairs of a token with the same key share a row, and have the same owner.
        share: rows for every destination, which must suffice; ``None``: as many as there are, which the host must know.
        is_shared: whether all pairs that share a row read its answer, or the first alone.
    """
    first_TK = _first_of_its_key(key_TK)
    is_sent_TK = first_TK == torch.arange(owner_TK.shape[1], device=owner_TK.device)
    destination_P, pair_P = torch.sort(torch.where(is_sent_TK, owner_TK, num_ranks).flatten(), stable=True)
    row_P, num_rows, splits = rows_in_order(destination_P, num_ranks, share)
    row_TK = torch.empty_like(pair_P).scatter_(0, pair_P, row_P).view_as(owner_TK)
    if is_shared:
        row_TK = row_TK.gather(1, first_TK)
    nobody = owner_TK.numel()
    # Pairs that are not sent all land on a row past the last, which is dropped.
    pair_S = pair_P.new_full((num_rows + 1,), nobody).scatter_(0, row_P, pair_P)[:num_rows]
    return Legs(row_TK, pair_S, splits)


def _first_of_its_key(key_TK: torch.Tensor) -> torch.Tensor:
    """int64 ``[T, K]``: the first k of the token that has the same key."""
    # Of equal largest values, argmax promises no particular one; the smallest index is asked for instead.
    k_K = torch.arange(key_TK.shape[1], device=key_TK.device)
    is_same_TKK = key_TK.unsqueeze(2) == key_TK.unsqueeze(1)
    return torch.where(is_same_TKK, k_K, len(k_K)).amin(dim=2)


def rows_in_order(
    destination_P: torch.Tensor, num_destinations: int, share: int | None
) -> tuple[torch.Tensor, int, list[int] | None]:
    """For P entries in order of destination: their rows int64 ``[P]``, the number of rows, rows per destination.

    Entries whose destination is `num_destinations` go nowhere: their row is one past the last. With a `share`, every
    destination has that many rows, and what it has is not told.
    """
    p_P = torch.arange(len(destination_P), device=destination_P.device)
    ends_D = torch.arange(num_destinations + 1, device=destination_P.device)
    start_D = torch.searchsorted(destination_P, ends_D)
    if share is None:
        starts = start_D.tolist()
        num_rows = starts[-1]
        return p_P.clamp(max=num_rows), num_rows, [b - a for a, b in pairwise(starts)]
    num_rows = num_destinations * share
    row_P = destination_P * share + p_P - start_D[destination_P]
    return torch.where(destination_P < num_destinations, row_P, num_rows), num_rows, None
