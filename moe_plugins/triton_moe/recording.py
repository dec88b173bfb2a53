"""The launches of a call, kept with the places of their arguments, so that the next call need not work them out.

What a call launches depends on shapes alone. So a second call with the same shapes differs from the first in where its
inputs are, and in where its outputs and temporary tensors are allocated, and in nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.driver import driver

from moe_plugins.triton_moe.c_launcher import takes_stand_ins
from moe_plugins.triton_moe.launch import ALIGNMENT, Runner, observer

Tensors: TypeAlias = tuple[torch.Tensor, ...]

PIECE: Final = 256
"""Bytes to which temporary tensors are aligned."""
MOST: Final = 256
"""Recordings that a recorder keeps."""
OWNERS: Final = 16
"""Streams and threads that keep temporary memory of a recording."""
SMALL: Final = 1 << 18
"""Bytes of temporary memory up to which it is kept between calls: an allocation takes the host half a launch."""

_aten: Final = torch.ops.aten
_ALLOCATES: Final = frozenset({_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty})


class Recorder:
    """Calls `function`, and repeats its launches where a call with the same key was recorded before.

    `function` takes tensors and gives tensors that it has allocated. It may view, allocate and launch; when it does
    anything else, it is called each time. `kept` are tensors beside its inputs that it reads and that stay where they
    are. Outputs are allocated by each call. So is temporary memory, unless it is small: then each stream of each thread
    keeps its own, but never a CUDA graph, which has to own what it captured.
    """

    def __init__(self, function: Callable[..., Tensors], kept: Sequence[torch.Tensor] = ()) -> None:
        self._function, self._kept = function, tuple(kept)
        self._recordings: dict[object, _Recording | None] = {}

    def __call__(self, key: object, *inputs: torch.Tensor) -> Tensors:
        """``function(*inputs)``; equal keys mean equal shapes and element types. Inputs are contiguous."""
        if observer.get() is not None:
            return self._function(*inputs)  # within another recording, which has to see every launch
        addresses = [tensor.data_ptr() for tensor in inputs]
        device = inputs[0].get_device()
        if device >= 0 and device != torch.cuda.current_device():
            with torch.cuda.device(device):
                return self(key, *inputs)
        key = (key, device, *[address % ALIGNMENT == 0 for address in addresses])
        try:
            recording = self._recordings[key]
        except KeyError:
            outputs, watcher = _watched(self._function, inputs)
            if not watcher.is_early:
                self._recordings[key] = _recording(watcher, inputs, outputs, self._kept)
                if len(self._recordings) > MOST:
                    del self._recordings[next(iter(self._recordings))]
            return outputs
        return self._function(*inputs) if recording is None else recording(addresses)


class _Moving(NamedTuple):
    """An argument of a launch that is another address in each call."""

    position: int
    base: int
    """Index among inputs, outputs and the temporary memory, in this order."""
    offset: int


class _Address:
    """Stands for a tensor of which nothing but the address is asked."""

    __slots__ = ("_address",)

    def __init__(self, address: int) -> None:
        self._address = address

    def data_ptr(self) -> int:
        return self._address


class _Boxes:
    """Stands for the description of a matrix by which the memory engine copies boxes of it."""

    __slots__ = ("base", "padding", "shape", "strides")

    def __init__(self, shape: Sequence[int], strides: Sequence[int], padding: str, address: int) -> None:
        self.shape, self.strides, self.padding, self.base = shape, strides, padding, _Address(address)

    def at(self, address: int) -> _Boxes:
        """The same of a matrix that lies elsewhere."""
        return _Boxes(self.shape, self.strides, self.padding, address)


class _Launch(NamedTuple):
    runner: Runner
    grid: tuple[int, ...]
    values: list[Any]
    moving: tuple[_Moving, ...]


class _Output(NamedTuple):
    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype


class _Recording:
    def __init__(self, launches: Sequence[_Launch], outputs: Tensors, temporary: int) -> None:
        self._launches, self._temporary = tuple(launches), temporary
        self._outputs = [_Output(tensor.shape, tensor.stride(), tensor.dtype) for tensor in outputs]
        self._device = outputs[0].device
        self._is_cuda, self._index = outputs[0].is_cuda, outputs[0].get_device()
        self._memories: dict[tuple[int, int], torch.Tensor] = {}

    def __call__(self, addresses: list[int]) -> Tensors:
        device = self._device
        # Of the ways to allocate, the one that takes the host the least time.
        outputs = tuple([torch.empty_strided(s, t, dtype=dtype, device=device) for s, t, dtype in self._outputs])
        bases = [*addresses, *[tensor.data_ptr() for tensor in outputs]]
        stream = driver.active.get_current_stream(self._index)
        if self._temporary:
            memory = self._memory(stream)
            bases.append(memory.data_ptr())
        for runner, grid, values, moving in self._launches:
            arguments = values.copy()
            for position, base, offset in moving:
                value, address = arguments[position], bases[base] + offset
                arguments[position] = value.at(address) if isinstance(value, _Boxes) else address
            runner(grid, stream, arguments)
        return outputs

    def _memory(self, stream: int) -> torch.Tensor:
        if self._temporary > SMALL or (self._is_cuda and torch.cuda.is_current_stream_capturing()):
            # Let go when the launches are queued: what is queued behind them on the same stream may have it.
            return self._allocated()
        # Two threads may launch on one stream by turns, in the middle of each other's calls.
        owner = stream, get_ident()
        found = self._memories.get(owner)
        if found is None:
            if len(self._memories) >= OWNERS:
                self._memories.clear()  # what is in flight is reused on its own stream only
            found = self._memories[owner] = self._allocated()
        return found

    def _allocated(self) -> torch.Tensor:
        return torch.empty(self._temporary, dtype=torch.uint8, device=self._device)


def _watched(function: Callable[..., Tensors], inputs: Tensors) -> tuple[Tensors, _Watcher]:
    watcher = _Watcher()
    token = observer.set(watcher)
    try:
        with watcher:
            return function(*inputs), watcher
    finally:
        observer.reset(token)


def _recording(watcher: _Watcher, inputs: Tensors, outputs: Tensors, kept: Sequence[torch.Tensor]) -> _Recording | None:
    if not watcher.is_pure or not watcher.launches:
        return None
    places = _Places((*inputs, *outputs), kept)
    launches = [_placed(*entry, places) for entry in watcher.launches]
    return _Recording(launches, outputs, places.temporary)


class _Watcher(TorchDispatchMode):
    """Keeps launches, and notices operators that do more than allocate or view."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # With their tensors, which stay alive: no address is given out twice.
        self.launches: list[tuple[Runner, tuple[int, ...], Sequence[Any]]] = []
        self.is_pure = True
        self.is_early = False
        """How a kernel is best launched could not be told yet."""

    def launched(self, runner: Runner | None, grid: tuple[int, ...], values: Sequence[Any]) -> None:
        if runner is None:
            self.is_early = True
        elif any(_is_descriptor(value) for value in values) and not takes_stand_ins():
            self.is_pure = False  # the address is inside
        else:
            self.launches.append((runner, grid, values))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.is_pure &= func.is_view or func.overloadpacket in _ALLOCATES
        return func(*args, **(kwargs or {}))


class _Places:
    """Where the addresses of a call come from."""

    def __init__(self, named: Sequence[torch.Tensor], kept: Sequence[torch.Tensor]) -> None:
        self._named = [_extent(tensor) for tensor in named]
        self._kept = [_extent(tensor) for tensor in kept]
        self._temporaries: dict[int, int] = {}
        self.temporary = 0

    def of(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """Base and offset of `tensor`; ``None`` when it stays where it is."""
        address = tensor.data_ptr()
        if any(start <= address < end for start, end in self._kept):
            return None
        for base, (start, end) in enumerate(self._named):
            if start <= address < end:
                return base, address - start
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
        elif _is_descriptor(value):
            place = places.of(value.base)
            if place is not None:
                arguments[position] = _Boxes(value.shape, value.strides, value.padding, 0)
                moving.append(_Moving(position, *place))
    return _Launch(runner, grid, arguments, tuple(moving))


def _is_descriptor(value: Any) -> bool:
    return hasattr(value, "block_shape")
