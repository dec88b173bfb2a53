"""What a forward is given, cut into chunks and padded as its plan says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import torch

from moe_core.contract.plan import ChunkPlan


class Event(Protocol):
    """Something that a stream can wait for, such as a ``torch.cuda.Event``."""

    def wait(self) -> None:
        """Make the current stream wait."""


class InputReady:
    """The moment from which rows may be read. Routing needs logits only, so it does not wait."""

    __slots__ = ("_event",)

    def __init__(self, event: Event | None = None) -> None:
        self._event = event

    def wait(self) -> None:
        """Wait, the first time; to be called before the first operation that reads rows."""
        event, self._event = self._event, None
        if event is not None:
            event.wait()


NO_EVENT: Final = InputReady()


class Turn(NamedTuple):
    """Whether a call is the first or the last of an iteration: what the load balancer's hooks go by."""

    is_first: bool
    is_last: bool

    def of_chunk(self, index: int, num_chunks: int) -> Turn:
        """The turn of one chunk of a forward."""
        return Turn(self.is_first and index == 0, self.is_last and index == num_chunks - 1)


ONLY: Final = Turn(is_first=True, is_last=True)


class Repeats:
    """The calls of one iteration, counted: a layer may run several times with one set of weights."""

    __slots__ = ("_count", "_index")

    def __init__(self, count: int) -> None:
        self._index, self._count = 0, count

    @property
    def turn(self) -> Turn:
        """Of the next call."""
        return ONLY if self._count == 1 else Turn(self._index == 0, self._index == self._count - 1)

    def advance(self) -> None:
        """The call is over; one that failed is not."""
        self._index = (self._index + 1) % self._count


@dataclass(frozen=True, slots=True)
class ForwardInputs:
    """Rows of one forward, or of one chunk of it. T rows, of which the first `num_real` are tokens."""

    x: torch.Tensor
    """``[T, H]`` in the layer's element type; or quantized already, with `x_sf`."""
    router_logits: torch.Tensor
    """``[T, E]``."""
    num_real: int
    """The rows behind it are padding."""
    x_sf: torch.Tensor | None = None
    """Scales of quantized rows, row by row; ``None``: the backend quantizes them if it has to."""
    input_ids: torch.Tensor | None = None
    """Token ids ``[T]``, for a hashed router."""
    is_padding: torch.Tensor | None = None
    """bool ``[T]``: more rows that are padding, as in a CUDA graph that is captured for more tokens than there are."""
    lora_params: Any = None
    ready: InputReady = NO_EVENT

    @property
    def num_rows(self) -> int:
        """T."""
        return self.x.shape[0]

    def padded(self, num_rows: int) -> ForwardInputs:
        """The same tokens with zero rows appended up to `num_rows`."""
        missing = num_rows - self.num_rows
        if not missing:
            return self
        self.ready.wait()

        def longer(rows: torch.Tensor | None) -> torch.Tensor | None:
            return None if rows is None else torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])

        return self._each(longer, self.num_real)

    def rows(self, start: int, end: int) -> ForwardInputs:
        """Rows ``[start, end)``."""
        return self._each(
            lambda rows: None if rows is None else rows[start:end], min(max(self.num_real - start, 0), end - start)
        )

    def chunks(self, chunks: tuple[ChunkPlan, ...], rank: int) -> Iterator[ForwardInputs]:
        """The rows of each chunk; where the rank has none of its own left, its first chunk once more as padding."""
        start = 0
        for chunk in chunks:
            size = chunk.sizes[rank]
            if chunk.kept[rank]:
                yield self.rows(start, start + size)
                start += size
            else:
                yield self.rows(0, size)._each(lambda rows: rows, 0)

    def _each(self, change: Any, num_real: int) -> ForwardInputs:
        return ForwardInputs(
            x=change(self.x),
            router_logits=change(self.router_logits),
            num_real=num_real,
            x_sf=change(self.x_sf),
            input_ids=change(self.input_ids),
            is_padding=change(self.is_padding),
            lora_params=self.lora_params,
            ready=self.ready,
        )
