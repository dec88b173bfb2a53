"""The launches of a call, kept with the places of their arguments, so that the next call need not work them out.

What a call launches depends on shapes alone. So the second call with the same shapes differs from the first in where
its inputs are, and in where its outputs and temporary tensors are allocated, and in nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.driver import driver

from moe_plugins.triton_moe.launch import Runner, observer

PIECE = 256
"""Bytes to which temporary tensors are aligned."""


class _Moving(NamedTuple):
    """An address among a launch's arguments that is another one in each call."""

    position: int
    base: int
    """Index of an input, or the number of inputs (the output), or one more (the temporary memory)."""
    offset: int


class _Launch(NamedTuple):
    runner: Runner
    grid: tuple[int, ...]
    values: list[Any]
    moving: tuple[_Moving, ...]


class Recording:
    """A call of `function`, to be repeated with other tensors of the same shapes, element types and alignment."""

    def __init__(
        self, launches: Sequence[_Launch], output: torch.Tensor, temporary: int, kept: Sequence[torch.Tensor]
    ) -> None:
        self._launches, self._temporary = tuple(launches), temporary
        self._shape, self._dtype, self._device = output.shape, output.dtype, output.device
        self._index = output.device.index
        self._kept = kept

    @classmethod
    def of(
        cls, function: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor], kept: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, Self | None]:
        """``function(*inputs)``, and how to repeat it; ``None`` when it did anything but allocate and launch.

        Args:
            function: gives one tensor, which it has allocated.
            kept: tensors that `function` reads and that stay where they are.
        """
        watcher = _Watcher()
        token = observer.set(watcher)
        try:
            with watcher:
                output = function(*inputs)
        finally:
            observer.reset(token)
        if not watcher.is_pure or not watcher.launches:
            return output, None
        places = _Places(inputs, output, kept)
        launches = [_placed(*entry, places) for entry in watcher.launches]
        return output, cls(launches, output, places.temporary, kept)

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        """What the function would give."""
        output = torch.empty(self._shape, dtype=self._dtype, device=self._device)
        bases = [tensor.data_ptr() for tensor in inputs]
        bases.append(output.data_ptr())
        if self._temporary:
            # Freed when this returns, and so reused by what is queued behind on the same stream.
            memory = torch.empty(self._temporary, dtype=torch.uint8, device=self._device)
            bases.append(memory.data_ptr())
        stream = driver.active.get_current_stream(self._index)
        for runner, grid, values, moving in self._launches:
            arguments = values.copy()
            for position, base, offset in moving:
                arguments[position] = bases[base] + offset
            runner(grid, stream, arguments)
        return output


class _Watcher(TorchDispatchMode):
    """Keeps launches, and notices operators that do more than allocate or view."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # With their tensors, which stay alive: no address is given out twice.
        self.launches: list[tuple[Runner, tuple[int, ...], Sequence[Any]]] = []
        self.is_pure = True

    def launched(self, runner: Runner | None, grid: tuple[int, ...], values: Sequence[Any]) -> None:
        if runner is None or any(hasattr(value, "block_shape") for value in values):
            self.is_pure = False  # a descriptor has its address inside
        else:
            self.launches.append((runner, grid, values))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.is_pure &= func.is_view or func.overloadpacket in _ALLOCATES
        return func(*args, **(kwargs or {}))


_ALLOCATES = frozenset({torch.ops.aten.empty, torch.ops.aten.empty_strided, torch.ops.aten.new_empty})


class _Places:
    """Where the addresses of a call come from."""

    def __init__(self, inputs: Sequence[torch.Tensor], output: torch.Tensor, kept: Sequence[torch.Tensor]) -> None:
        self._named = [_extent(tensor) for tensor in (*inputs, output)]
        self._kept = [_extent(tensor) for tensor in kept]
        self._temporaries: dict[int, int] = {}
        self.temporary = 0

    def of(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """Base and offset of `tensor`; ``None`` when it stays where it is."""
        address = tensor.data_ptr()
        for base, (start, end) in enumerate(self._named):
            if start <= address < end:
                return base, address - start
        if any(start <= address < end for start, end in self._kept):
            return None
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._temporaries:
            self._temporaries[storage.data_ptr()] = self.temporary
            self.temporary += -(-storage.nbytes() // PIECE) * PIECE
        return len(self._named), self._temporaries[storage.data_ptr()] + address - storage.data_ptr()


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()


def _placed(runner: Runner, grid: tuple[int, ...], values: Sequence[Any], places: _Places) -> _Launch:
    arguments, moving = list(values), []
    for position, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            arguments[position] = value.data_ptr()
            place = places.of(value)
            if place is not None:
                moving.append(_Moving(position, *place))
    return _Launch(runner, grid, arguments, tuple(moving))
