"""Weighing and summing by the model's own function, on dispatched rows, before combine."""

from __future__ import annotations

import torch

from moe_core.schedule.abilities import UnfinalizedCombine, UnfinalizedOutput


def combine_unfinalized(
    combine: UnfinalizedCombine | None, output: UnfinalizedOutput, scales_NK: torch.Tensor
) -> torch.Tensor:
    """Dense rows ``[N, H]`` of the experts' `output`, N that of the dispatched scales."""
    if combine is None:
        raise NotImplementedError(
            "do_finalize=False: rows that are sent back must be dense, and nobody sums them; give "
            "unfinalized_combine_fn, a function of one (token, expert) row at a time"
        )
    index = output.expanded_idx_to_permuted_idx
    if index.numel() != scales_NK.numel():
        raise ValueError(
            f"expanded_idx_to_permuted_idx has {index.numel()} entries, needed one for each of the "
            f"{scales_NK.numel()} dispatched (token, expert) pairs"
        )
    return combine(
        gemm2_output=output.gemm2_output,
        expanded_idx_to_permuted_idx=index,
        routing_weights=scales_NK,
        num_tokens=scales_NK.shape[0],
    )
