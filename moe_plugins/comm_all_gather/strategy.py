"""Every rank gets every row; each sums its partial outputs into the rows' owners. Works everywhere, on any workload."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.nn.functional import pad

from moe_core.communication import Communication, Dispatched, checked_counts
from moe_core.execution import BindError, Binding

# torch 2.13 renames both and warns about the old names.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class AllGatherReduceScatter(Communication):
    """All-gather rows in rank order, reduce-scatter outputs. Counts may differ between ranks and may be zero."""

    def __init__(self, binding: Binding) -> None:
        super().__init__(binding)
        if self.groups.group is None:
            raise BindError("AllGatherReduceScatter needs the process group of the layer's ranks; give groups")
        self._group: ProcessGroup = self.groups.group
        self._sizes: tuple[int, ...] = ()

    def _dispatch(self, rows: Dispatched, all_rank_num_tokens: Sequence[int]) -> Dispatched:
        self._sizes = checked_counts(
            all_rank_num_tokens, dist.get_world_size(self._group), self.groups.rank, len(rows.x)
        )
        return Dispatched(
            x=self._gather(rows.x),
            x_sf=None if rows.x_sf is None else self._gather(rows.x_sf),
            token_selected_slots=self._gather(rows.token_selected_slots),
            token_final_scales=self._gather(rows.token_final_scales),
        )

    def _combine(self, y: torch.Tensor) -> torch.Tensor:
        most = max(self._sizes)
        if not most:
            return y
        mine = y.new_empty(most, *y.shape[1:])
        blocks = [_padded(block, most) for block in torch.split(y, list(self._sizes))]
        _reduce_scatter(mine, torch.cat(blocks), group=self._group)
        return mine[: self._sizes[self.groups.rank]]

    def _gather(self, rows: torch.Tensor) -> torch.Tensor:
        most = max(self._sizes)
        if not most:
            return rows
        # Collectives know few one-byte types; bytes travel unchanged under any name.
        sent = _padded(rows.contiguous().view(torch.uint8) if rows.dtype.itemsize == 1 else rows, most)
        received = sent.new_empty(len(self._sizes) * most, *sent.shape[1:])
        _all_gather(received, sent.contiguous(), group=self._group)
        if min(self._sizes) < most:
            blocks = zip(torch.split(received, most), self._sizes, strict=True)
            received = torch.cat([block[:size] for block, size in blocks])
        return received.view(rows.dtype)


def _padded(rows: torch.Tensor, count: int) -> torch.Tensor:
    """`rows` with zero rows appended up to `count`."""
    missing = count - rows.shape[0]
    return pad(rows, (0, 0) * (rows.ndim - 1) + (0, missing)) if missing else rows
