"""The second CUDA stream of a layer."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch


class CudaAuxStream:
    """A stream with the two events that fork it off the current one and join it again; capturable."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._main = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._overlap = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def fork(self) -> None:
        """What follows on it waits for the current stream."""
        self._main.record()
        self._stream.wait_event(self._main)

    def scope(self) -> AbstractContextManager[object]:
        """Inside, it is the current stream."""
        return torch.cuda.stream(self._stream)

    def join(self) -> None:
        """The current stream waits for it."""
        self._overlap.record(self._stream)
        torch.cuda.current_stream().wait_event(self._overlap)
