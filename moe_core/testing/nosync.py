"""A trap for whatever makes the host wait for the device: a forward stalls, and no CUDA graph can be captured.

It works on the CPU, where nothing waits, because it goes by what is called: operators whose result the host must know
(torch tags them), and methods that hand values to Python. What an operator does inside goes unseen there; on CUDA torch
itself watches for that.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

ADVICE: Final = "compute it on the device, with sizes that the host knows, or declare supports_cuda_graph=False"
MASKS: Final = (torch.bool, torch.uint8)

_WAITING_TAGS: Final = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
# They read a tensor's memory at once, so no operator is seen; and on the CPU .cpu() is no operation at all.
_WAITING_METHODS: Final = {
    getattr(torch.Tensor, name): f"Tensor.{name}" for name in ("tolist", "numpy", "cpu", "__array__", "__dlpack__")
}


class HostSyncError(AssertionError):
    """The host asked for a value that only the device knows."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the host waits for the device: {what}; {ADVICE}")


@contextmanager
def no_host_sync() -> Iterator[None]:
    """Inside the block, whatever makes the host wait for the device raises, and names the operator or method."""
    on_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    before = torch.cuda.get_sync_debug_mode() if on_cuda else 0
    with _Methods(), _Operators():  # type: ignore[no-untyped-call]
        if on_cuda:
            _set_debug_mode("error")
        try:
            yield
        finally:
            if on_cuda:
                _set_debug_mode(before)


def _set_debug_mode(mode: int | str) -> None:
    with warnings.catch_warnings():
        # torch says at its first use that the mode does not detect every synchronization.
        warnings.filterwarnings("ignore", message="Synchronization debug mode", category=UserWarning)
        torch.cuda.set_sync_debug_mode(mode)


class _Methods(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _WAITING_METHODS:
            raise HostSyncError(_WAITING_METHODS[func])
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if _waits(func, args, kwargs):
            raise HostSyncError(str(func))
        return func(*args, **kwargs)


def _waits(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    match func.overloadpacket:
        case torch.ops.aten.index:
            return _has_mask(args[1])
        case torch.ops.aten.index_put | torch.ops.aten.index_put_:
            # With one value it is a masked fill.
            return _has_mask(args[1]) and args[2].numel() != 1
        case torch.ops.aten._to_copy:
            to = torch.device(kwargs.get("device") or args[0].device)
            return _comes_down(args[0].device, to, bool(kwargs.get("non_blocking")))
        case torch.ops.aten.copy_:
            is_async = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
            return _comes_down(args[1].device, args[0].device, is_async)
    return not _WAITING_TAGS.isdisjoint(func.tags)


def _has_mask(indices: Sequence[torch.Tensor | None]) -> bool:
    return any(index is not None and index.dtype in MASKS for index in indices)


def _comes_down(source: torch.device, target: torch.device, is_async: bool) -> bool:
    return target.type == "cpu" and source.type != "cpu" and not is_async
