"""(Token, expert) pairs in order of expert and back, without a host synchronization."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ExpertOrder:
    """The R = T*K pairs of a batch sorted by local slot, in token order within a slot; foreign pairs come last."""

    pair_R: torch.Tensor
    """int64: the pair ``token * K + k`` of each row."""
    token_R: torch.Tensor
    """int64: the token of each row."""
    slot_R: torch.Tensor
    """int64: the local slot of each row, and the number of local slots for foreign pairs."""
    end_L: torch.Tensor
    """int32: one past the last row of each local slot."""
    is_local_TK: torch.Tensor
    """bool: whether a pair's expert is on this rank."""


def order_by_expert(slots_TK: torch.Tensor, slot_start: int, slot_end: int) -> ExpertOrder:
    """Sort the pairs of global slot ids int32 ``[T, K]`` by the local slots ``[slot_start, slot_end)``."""
    is_local_TK = (slots_TK >= slot_start) & (slots_TK < slot_end)
    num_local = slot_end - slot_start
    local_R = torch.where(is_local_TK, slots_TK - slot_start, num_local).flatten().long()
    slot_R, pair_R = torch.sort(local_R, stable=True)
    # Counting by binary search: a histogram would be atomic additions, or a size that the host must know.
    end_L = torch.searchsorted(slot_R, torch.arange(1, num_local + 1, device=slots_TK.device), out_int32=True)
    token_R = pair_R // max(slots_TK.shape[1], 1)
    return ExpertOrder(pair_R, token_R, slot_R, end_L, is_local_TK)


def weighted_sum(y_RH: torch.Tensor, order: ExpertOrder, scales_TK: torch.Tensor) -> torch.Tensor:
    """Each token's rows times its scales, summed in order of k: float32 ``[T, H]``.

    Foreign pairs add exactly zero, whatever `y_RH` and `scales_TK` hold for them.
    """
    row_of_pair = torch.empty_like(order.pair_R).scatter_(
        0, order.pair_R, torch.arange(order.pair_R.numel(), device=order.pair_R.device)
    )
    # Both factors are masked: zero times NaN is NaN, forward and backward.
    local = order.is_local_TK
    y_TKH = torch.where(local.unsqueeze(-1), y_RH[row_of_pair].view(*local.shape, y_RH.shape[-1]), 0.0)
    return (y_TKH * torch.where(local, scales_TK.float(), 0.0).unsqueeze(-1)).sum(dim=1)
