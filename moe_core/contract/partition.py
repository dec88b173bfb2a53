"""How experts are split over EP ranks (ceil for the first ranks, floor for the rest), and their width over TP ranks."""

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


def width_share(size: int, rank: int, tp_size: int) -> tuple[int, int]:
    """Start and end of the share of `rank` in an intermediate size: ceil for all ranks but the last that has any.

    Raises ``ValueError`` when there is no such rank, or nothing is left for it.
    """
    if not 0 <= rank < tp_size:
        raise ValueError(f"tensor-parallel rank {rank} is not one of {tp_size}")
    width = -(-size // tp_size)
    start, end = rank * width, min((rank + 1) * width, size)
    if start >= end:
        raise ValueError(
            f"shares of {width} leave nothing of {size} for rank {rank} of {tp_size}; use a smaller tp_size"
        )
    return start, end
