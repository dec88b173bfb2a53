"""Sleep and wake: strategies give their native memory back while a server rests, and take it again, all ranks together.

What has memory to give back implements the three methods of :class:`Checkpointable`; others just refuse to work.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from enum import Enum, auto
from typing import Any, Protocol, runtime_checkable

import torch.distributed as dist
from torch.distributed import ProcessGroup

from moe_core.communication.base import Communication, Phase
from moe_core.communication.late import named


class Comm(Protocol):
    """What sleeping needs of a communicator: four methods of mpi4py's."""

    def Get_rank(self) -> int: ...

    def Get_size(self) -> int: ...

    def allgather(self, sendobj: Any) -> list[Any]: ...

    def barrier(self) -> None: ...


@runtime_checkable
class Checkpointable(Protocol):
    """A strategy with memory that can be detached. Those that share a workspace have one key, and one turn."""

    def checkpoint_resource_key(self) -> Hashable:
        """Identity of the workspace."""

    def checkpoint_prepare(self) -> None:
        """Detach the workspace; every rank is idle. Nothing happens when it is detached already."""

    def checkpoint_restore(self, comm: Comm | None = None) -> None:
        """Attach it again, on all ranks together, at the addresses that captured graphs hold; else raise."""


class GroupComm:
    """A process group as a :class:`Comm`."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group

    def Get_rank(self) -> int:
        """Rank in the group."""
        return dist.get_rank(self._group)

    def Get_size(self) -> int:
        """Ranks of the group."""
        return dist.get_world_size(self._group)

    def allgather(self, sendobj: Any) -> list[Any]:
        """Every rank's object, in order of rank."""
        gathered = [None] * self.Get_size()
        dist.all_gather_object(gathered, sendobj, group=self._group)
        return gathered

    def barrier(self) -> None:
        """Wait for every rank."""
        dist.barrier(self._group)


class State(Enum):
    """Of all strategies together. What is broken can only be destroyed."""

    AWAKE = auto()
    ASLEEP = auto()
    BROKEN = auto()


class SleepCoordinator:
    """Puts `strategies` to sleep and wakes them: each workspace once, and no rank alone.

    Every step is agreed on by all ranks of `comm`. A step that fails on some rank, or an agreement that cannot be
    reached, leaves the strategies refusing to work on all of them: memory in doubt is not used.
    """

    def __init__(self, strategies: Iterable[Communication], comm: Comm) -> None:
        self._strategies = tuple(strategies)
        self._comm, self._place = comm, (comm.Get_rank(), comm.Get_size())
        self._state = State.AWAKE

    @property
    def state(self) -> State:
        """Where the strategies are, all together."""
        return self._state

    def sleep(self) -> None:
        """Detach every workspace; nothing when asleep. ``RuntimeError`` names ranks that are busy, or that failed."""
        if self._state is State.ASLEEP:
            return
        self._require_sound()
        if busy := self._dissenting(self._comm, all(s.phase is Phase.IDLE for s in self._strategies)):
            raise RuntimeError(f"cannot sleep: {named(busy)} did not end a dispatch; combine, or reset, and try again")
        for strategy in self._strategies:
            strategy.sleep()
        self._step(self._comm, "sleep", lambda workspace: workspace.checkpoint_prepare())
        self._state = State.ASLEEP

    def wake(self, comm: Comm | None = None) -> None:
        """Attach every workspace; nothing when awake.

        `comm` replaces a communicator that did not outlive the sleep; this rank must be at the same place in it.
        Raises ``RuntimeError`` with the ranks that failed; then no rank is awake.
        """
        if self._state is State.AWAKE:
            return
        self._require_sound()
        comm = comm or self._comm
        if (place := (comm.Get_rank(), comm.Get_size())) != self._place:
            raise RuntimeError(
                f"cannot wake as rank {place[0]} of {place[1]}: workspaces were made for rank {self._place[0]} of "
                f"{self._place[1]}; give a communicator with the same ranks"
            )
        self._step(comm, "wake", lambda workspace: workspace.checkpoint_restore(comm))
        for strategy in self._strategies:
            strategy.wake()
        self._comm, self._state = comm, State.AWAKE

    def _step(self, comm: Comm, what: str, change: Callable[[Checkpointable], None]) -> None:
        error: Exception | None = None
        try:
            for workspace in self._workspaces():
                change(workspace)
        except Exception as raised:
            error = raised
        if failed := self._dissenting(comm, error is None):
            self._state = State.BROKEN
            raise RuntimeError(f"cannot {what}: {named(failed)} failed; destroy the layers on all ranks") from error

    def _workspaces(self) -> Iterable[Checkpointable]:
        found: dict[Hashable, Checkpointable] = {}
        for strategy in self._strategies:
            if isinstance(strategy, Checkpointable):
                found.setdefault(strategy.checkpoint_resource_key(), strategy)
        return found.values()

    def _dissenting(self, comm: Comm, flag: bool) -> list[int]:
        """Ranks whose flag is down. Whether this rank may go on is then open, if they cannot be asked."""
        try:
            flags = comm.allgather(flag)
            if len(flags) != self._place[1]:
                raise RuntimeError(f"asked {self._place[1]} ranks whether to go on, found {len(flags)} answers")
        except BaseException:
            self._state = State.BROKEN
            for strategy in self._strategies:
                if strategy.phase is Phase.IDLE:
                    strategy.sleep()
            raise
        return [rank for rank, is_up in enumerate(flags) if not is_up]

    def _require_sound(self) -> None:
        if self._state is State.BROKEN:
            raise RuntimeError("an earlier sleep or wake failed; destroy the layers on all ranks, and make them again")
