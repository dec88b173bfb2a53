"""Launching a Triton kernel: the one place that knows how.

Triton finds the compiled kernel of a call anew each time, which costs the host 25 us on a Hopper machine. Here what it
found is kept: per kernel, compile-time arguments, device, and whatever else of the run-time arguments it compiles for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeAlias

import torch
import triton
from triton.runtime.driver import driver

from moe_plugins.triton_moe.c_launcher import c_launcher, works_on

ALIGNMENT: Final = 16
"""Bytes: Triton compiles another kernel for pointers that are not aligned to it."""


Runner: TypeAlias = Callable[[tuple[int, ...], int, Sequence[Any]], None]
"""A compiled kernel on its device: launches on a grid of three and a stream with all arguments in the kernel's order,
constants too; a pointer may be a tensor or its address."""


class Observer(Protocol):
    """Is told of every launch of a compiled kernel."""

    def launched(self, runner: Runner | None, grid: tuple[int, ...], values: Sequence[Any]) -> None:
        """What would launch the same again; ``None``: nothing yet."""


observer: Final[ContextVar[Observer | None]] = ContextVar("observer", default=None)

_runners: Final[dict[Any, Runner]] = {}


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    args: tuple[Any, ...],
    meta: Mapping[str, Any],
    *,
    num_warps: int = 4,
    num_stages: int = 1,
    pdl: bool = False,
) -> None:
    """Run `kernel` on `grid` with run-time `args` and compile-time `meta`, on the current device and stream.

    `pdl` lets the kernel start while its predecessor drains; it must then call ``gdc_wait`` before it reads anything
    that the predecessor wrote, or writes anything that the predecessor reads. Integers among `args` must be listed in
    the kernel's ``do_not_specialize``: raises ``TypeError`` for one that is not.
    """
    if not isinstance(kernel, triton.JITFunction):  # Triton's interpreter
        kernel[grid](*args, **meta, num_warps=num_warps, num_stages=num_stages, launch_pdl=pdl)
        return
    device = driver.active.get_current_device()
    key = (kernel, device, num_warps, num_stages, pdl, *meta, *meta.values(), *map(_kind, args))
    found = _runners.get(key)
    values = (*args, *[meta[name] for name in kernel.arg_names[len(args) :]])
    whole = (*grid, 1, 1)[:3]
    if found is None:
        _check_integers(kernel, args)
        compiled = kernel[grid](*args, **meta, num_warps=num_warps, num_stages=num_stages, launch_pdl=pdl)
        found = _runner_of(compiled, args, device)
        if found is not None:
            _runners[key] = found
    else:
        found(whole, driver.active.get_current_stream(device), values)
    watching = observer.get()
    if watching is not None:
        watching.launched(found, whole, values)


def _kind(arg: Any) -> object:
    """What Triton compiles another kernel for."""
    if isinstance(arg, torch.Tensor):
        return arg.dtype, arg.data_ptr() % ALIGNMENT == 0
    if isinstance(arg, int):
        return "i32" if -(2**31) <= arg < 2**31 else arg
    if hasattr(arg, "block_shape"):  # a descriptor
        return arg.base.dtype, tuple(arg.block_shape), repr(getattr(arg, "layout", None))
    return type(arg)


def _check_integers(kernel: Any, args: tuple[Any, ...]) -> None:
    specialized = [
        param.name
        for param, arg in zip(kernel.params, args, strict=False)
        if isinstance(arg, int) and not param.do_not_specialize
    ]
    if specialized:
        raise TypeError(
            f"{kernel.fn.__name__} would be compiled for some values of {', '.join(specialized)}; "
            "list them in do_not_specialize"
        )


def _runner_of(compiled: Any, args: tuple[Any, ...], device: int) -> Runner | None:
    """The cheapest way that works here; ``None``: that cannot be told now."""
    if not any(isinstance(arg, torch.Tensor) and arg.is_cuda for arg in args):
        return None  # compiled for a machine that is not here
    trusted = works_on(device)
    if trusted is None:
        return None
    return c_launcher(compiled) if trusted else _public(compiled)


def _public(compiled: Any) -> Runner:
    def run(grid: tuple[int, ...], stream: int, values: Sequence[Any]) -> None:
        compiled[grid](*values, stream=stream)

    return run
