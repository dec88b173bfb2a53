"""Who is late: each rank counts the collectives that it enters, in a store beside them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, Self

import torch.distributed as dist
from torch.distributed import ProcessGroup

from moe_core.communication.stores import Store, shared_part, store_of, until
from moe_core.explain.phrases import ranges

PATIENCE: Final = timedelta(seconds=2)


class LateRankError(RuntimeError):
    """Ranks that others waited for did not come."""

    def __init__(self, message: str, ranks: Sequence[int]) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)
        """Those that did not come."""


class RankWatch:
    """Names the ranks that a failed collective waited for: give one to the layer's groups, ``groups.watch``.

    Only the host's progress is counted. A failure surfaces within the group's timeout, and `patience` later it is told
    who did not come: ranks that are merely behind have that long to come, or to fail too. Where a failure surfaces
    elsewhere, at a later synchronization as with NCCL, ask :meth:`late_ranks`.

    Made on all ranks together. The store should outlive every rank: that of the launcher does.
    """

    def __init__(self, store: Store, rank: int, num_ranks: int, *, patience: timedelta = PATIENCE) -> None:
        self._rank, self._num_ranks, self._patience = rank, num_ranks, patience.total_seconds()
        self._store = shared_part(store, "watch", rank)
        self._num_entered = 0
        self._collective = "a collective"

    @classmethod
    def of(cls, group: ProcessGroup, *, patience: timedelta = PATIENCE) -> Self:
        """A watch in the store of `group`."""
        return cls(store_of(group), dist.get_rank(group), dist.get_world_size(group), patience=patience)

    def enter(self, collective: str) -> None:
        """This rank is about to join `collective`. A lost store is no reason to fail: the collective may not."""
        self._num_entered += 1
        self._collective = collective
        try:
            self._store.set(f"entered/{self._rank}", str(self._num_entered))
        except RuntimeError:
            return

    def late_ranks(self) -> tuple[int, ...]:
        """Ranks that have entered fewer collectives than this one; ``RuntimeError`` when the store is lost."""
        return self._below("entered", self._num_entered)

    def explain(self, error: Exception) -> Exception:
        """`error` of the collective entered last as a :class:`LateRankError`, when ranks did not come to it.

        When all came, those are named that neither left it nor failed too: they are in it still, or they are gone.
        Other errors, and errors of all ranks alike, stay what they are.
        """
        if not isinstance(error, RuntimeError) or isinstance(error, LateRankError):
            return error
        try:
            return self._explained(error)
        except RuntimeError as lost:
            error.add_note(f"who is late cannot be told: the store that ranks count in does not answer: {lost}")
            return error

    def _explained(self, error: Exception) -> Exception:
        self._store.set(f"failed/{self._rank}", str(self._num_entered))
        until(lambda: not self._silent_ranks(), self._patience)
        if late := self.late_ranks():
            who, found = late, "did not come to it"
        elif silent := self._silent_ranks():
            who, found = silent, "came to it, and neither left it nor failed"
        else:
            return error
        return LateRankError(
            f"{self._collective} failed on rank {self._rank}: {named(who)} {found} within {self._patience:g} s of that "
            f"(it is the collective number {self._num_entered}; see what became of {named(who)}); the failure: {error}",
            who,
        )

    def _silent_ranks(self) -> tuple[int, ...]:
        """Ranks of which it is not known that they are past the collective, or out of it."""
        in_it = self._below("entered", self._num_entered + 1)
        failed_before = self._below("failed", self._num_entered)
        return tuple(rank for rank in in_it if rank in failed_before)

    def _below(self, counter: str, count: int) -> tuple[int, ...]:
        # Adding nothing reads a counter without waiting for it to exist.
        return tuple(r for r in range(self._num_ranks) if self._store.add(f"{counter}/{r}", 0) < count)


def named(ranks: Sequence[int]) -> str:
    """``rank 2``, or ``ranks 0-1, 3``."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranges(ranks)}"
