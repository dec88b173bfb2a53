"""What every strategy is: dispatch rows to the ranks that hold their experts, combine what comes back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum, auto
from types import TracebackType
from typing import ClassVar, NamedTuple, Self, final

import torch

from moe_core.communication.joining import joined, refuse_gradients
from moe_core.execution import Binding


class Dispatched(NamedTuple):
    """Rows as the experts of this rank see them: N rows after the exchange, K ids each."""

    x: torch.Tensor
    x_sf: torch.Tensor | None
    token_selected_slots: torch.Tensor
    token_final_scales: torch.Tensor


def checked_counts(counts: Sequence[int], num_ranks: int, rank: int, own: int) -> tuple[int, ...]:
    """`counts` as a tuple, when it has one count per rank and this rank's is `own`; else ``ValueError``."""
    if len(counts) != num_ranks:
        raise ValueError(f"all_rank_num_tokens has {len(counts)} counts, needed one for each of {num_ranks} ranks")
    if counts[rank] != own:
        raise ValueError(f"rank {rank} has {own} rows, but all_rank_num_tokens says {counts[rank]}")
    return tuple(counts)


class Phase(Enum):
    """Where a strategy is between two collectives."""

    IDLE = auto()
    DISPATCHED = auto()
    ASLEEP = auto()
    DESTROYED = auto()


class Communication(ABC):
    """A strategy: ``dispatch``, then ``combine``, then again. Both are collectives over all ranks of the layer.

    Every decision inside must follow from values that are equal on all ranks. Resources are released by ``destroy``,
    which all ranks must call: a collective inside a destructor would hang at garbage collection's pleasure.
    """

    inference_only: ClassVar[bool] = True
    """Whether gradients end at the exchange; rows that ask for them are then refused."""
    gathers_statistics: ClassVar[bool] = False
    """Whether dispatch carries the ranks' expert counts along, so that the load balancer need not reduce them."""

    def __init__(self, binding: Binding) -> None:
        self.groups = binding.groups
        self.supports_graph_padding_trim = binding.candidate.capabilities.supports_graph_padding_trim
        self._phase = Phase.IDLE

    @property
    def moves_nothing(self) -> bool:
        """Whether ``dispatch`` and ``combine`` give back what they are given, so that nobody need call them."""
        return False

    @property
    def phase(self) -> Phase:
        """Where the strategy is."""
        return self._phase

    def max_rows(self, all_rank_num_tokens: Sequence[int]) -> int:
        """Most rows that dispatch can deliver to a rank: what a workspace is sized for."""
        return sum(all_rank_num_tokens)

    def prepare_dispatch(self, statistic_E: torch.Tensor | None) -> None:  # noqa: B027 - most carry nothing along
        """Called before each dispatch; `statistic_E` int32 counts per expert, when the balancer wants them gathered."""

    def gathered_statistic(self) -> torch.Tensor:
        """Every rank's counts, int32 ``[ranks, E]``, once the dispatch that carried them is through."""
        raise NotImplementedError(f"{type(self).__name__} carries no statistics")

    @final
    def dispatch(
        self,
        x: torch.Tensor,
        x_sf: torch.Tensor | None,
        token_selected_slots: torch.Tensor,
        token_final_scales: torch.Tensor,
        all_rank_num_tokens: Sequence[int],
    ) -> Dispatched:
        """Send this rank's rows and receive those that its experts may serve.

        `x` ``[T, H]`` (or quantized, with `x_sf` ``[T, …]`` row by row), slots int32 ``[T, K]``, scales float32
        ``[T, K]``; `all_rank_num_tokens` holds the rows of every rank, the same on every rank. An id outside
        ``[0, num_slots)`` names nobody: it contributes exactly zero.
        """
        self._require(Phase.IDLE, "dispatch")
        if self.inference_only:
            refuse_gradients(type(self).__name__, x, token_final_scales)
        rows = Dispatched(x, x_sf, token_selected_slots, token_final_scales)
        result = joined(self.groups.watch, "dispatch", self._dispatch, rows, all_rank_num_tokens)
        self._phase = Phase.DISPATCHED
        return result

    @final
    def combine(self, y: torch.Tensor) -> torch.Tensor:
        """Sum over ranks of the dispatched rows' outputs, ``[N, H]``, back in this rank's own rows, ``[T, H]``."""
        self._require(Phase.DISPATCHED, "combine")
        self._phase = Phase.IDLE
        return joined(self.groups.watch, "combine", self._combine, y)

    @final
    def reset(self) -> None:
        """Forget a dispatch that nobody will combine; on all ranks, when an aborted forward is over everywhere."""
        if self._phase is Phase.DISPATCHED:
            self._phase = Phase.IDLE

    @final
    def sleep(self) -> None:
        """Refuse everything until :meth:`wake`; whoever puts strategies to sleep detaches what they hold."""
        self._require(Phase.IDLE, "sleep")
        self._phase = Phase.ASLEEP

    @final
    def wake(self) -> None:
        """Be idle again."""
        self._require(Phase.ASLEEP, "wake")
        self._phase = Phase.IDLE

    @final
    def destroy(self) -> None:
        """Release what the strategy holds; all ranks together. Calling it again does nothing."""
        if self._phase is not Phase.DESTROYED:
            self._phase = Phase.DESTROYED
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.destroy()

    @abstractmethod
    def _dispatch(self, rows: Dispatched, all_rank_num_tokens: Sequence[int]) -> Dispatched: ...

    @abstractmethod
    def _combine(self, y: torch.Tensor) -> torch.Tensor: ...

    def _release(self) -> None:  # noqa: B027 - most strategies hold nothing
        pass

    def _require(self, phase: Phase, what: str) -> None:
        if self._phase is not phase:
            raise RuntimeError(
                f"cannot {what} while {type(self).__name__} is {self._phase.name.lower()}: it must be "
                f"{phase.name.lower()}; dispatch and combine alternate, and nothing follows destroy"
            )
