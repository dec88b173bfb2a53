"""The sparse mixer of Phi-3.5-MoE: pick the best logit, weigh it among its near rivals, remove it, repeat."""

from __future__ import annotations

import torch


def sparse_mixer(logits_TE: torch.Tensor, top_k: int, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids ``[T, top_k]`` (int64) in order of choice, and their weights ``[T, top_k]``; weights are not renormalized.

    A rival competes unless ``(best - logit) / max(|logit|, best) > 2 * eps``. A row needs `top_k` finite logits.
    """
    left_TE, ids, weights = logits_TE, [], []
    for _ in range(top_k):
        id_T1 = torch.argmax(left_TE, dim=-1, keepdim=True)  # the lowest of equals
        best_T1 = left_TE.gather(-1, id_T1)
        distance_TE = (best_T1 - left_TE) / torch.maximum(logits_TE.abs(), best_T1)
        rivals_TE = left_TE.masked_fill(distance_TE > 2 * eps, -torch.inf)
        ids.append(id_T1)
        weights.append(torch.softmax(rivals_TE, dim=-1).gather(-1, id_T1))
        left_TE = left_TE.scatter(-1, id_T1, -torch.inf)
    return torch.cat(ids, dim=-1), torch.cat(weights, dim=-1)
