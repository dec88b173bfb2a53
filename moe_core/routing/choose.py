"""Which experts: the best of all, or the best of the best groups."""

from __future__ import annotations

import torch

from moe_core.contract.vocabulary import GroupScore


def top_k_lower_id_first(scores_TE: torch.Tensor, k: int) -> torch.Tensor:
    """Ids ``[T, k]`` (int64) of the `k` largest scores of each row, largest first; ties go to the lower id."""
    # torch.topk promises nothing about ties; a stable sort does.
    return torch.sort(scores_TE, dim=-1, descending=True, stable=True).indices[:, :k]


def keep_best_groups(
    scores_TE: torch.Tensor, num_groups: int, topk_group: int, group_score: GroupScore
) -> torch.Tensor:
    """Scores ``[T, E]`` with every expert outside the `topk_group` best groups at minus infinity.

    Groups are runs of ``E / num_groups`` experts. A group's score is its largest score, or the sum of its two largest.
    """
    grouped_TGS = scores_TE.reshape(len(scores_TE), num_groups, scores_TE.shape[-1] // num_groups)
    summands = 1 if group_score is GroupScore.MAX else min(2, grouped_TGS.shape[-1])
    group_scores_TG = grouped_TGS.topk(summands, dim=-1).values.sum(dim=-1)
    kept = top_k_lower_id_first(group_scores_TG, topk_group)
    # Minus infinity and not zero: with a negative bias the experts that stay may all score below zero.
    dropped_TG = torch.ones_like(group_scores_TG, dtype=torch.bool).scatter(-1, kept, False)
    return grouped_TGS.masked_fill(dropped_TG.unsqueeze(-1), -torch.inf).reshape(scores_TE.shape)
