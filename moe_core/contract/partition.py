"""How experts are split over EP ranks (ceil for the first ranks, floor for the rest)."""

from __future__ import annotations


def expert_partition(num_experts: int, ep_size: int) -> tuple[int, ...]:
    """Experts per rank: 256 over 6 is ``(43, 43, 43, 43, 42, 42)``. Raises ``ValueError`` below one per rank."""
    if num_experts < ep_size:
        raise ValueError(
            f"num_experts {num_experts} is less than ep_size {ep_size}: a rank would hold no expert; "
            f"use ep_size <= {num_experts}"
        )
    base, remainder = divmod(num_experts, ep_size)
    return tuple(base + (rank < remainder) for rank in range(ep_size))


def expert_start(num_experts: int, ep_size: int, rank: int) -> int:
    """First global expert of `rank`."""
    base, remainder = divmod(num_experts, ep_size)
    return rank * base + min(rank, remainder)


def redundant_experts(num_experts: int, ep_size: int) -> int:
    """Fewest extra slots that make the slots divide evenly: ``(ep - E mod ep) mod ep``."""
    return -num_experts % ep_size
