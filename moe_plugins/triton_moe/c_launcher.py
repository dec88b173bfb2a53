"""Triton's own launch function in C, called directly: a third of the host's time of the public way.

Its signature is private to Triton, so it is used with the versions below alone, and only after a kernel that was
launched through it has written what it should.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import triton
import triton.language as tl
from triton import knobs

KNOWN_VERSIONS: Final = ("3.6.",)

_trusted: Final[dict[int, bool]] = {}


class LauncherWarning(UserWarning):
    """Launches cost more of the host's time than they should."""


def takes_stand_ins() -> bool:
    """Whether this version asks a descriptor for no more than address of its base, shape, strides and padding."""
    return bool(triton.__version__.startswith(KNOWN_VERSIONS))


def works_on(device: int) -> bool | None:
    """Whether kernels may be launched this way on CUDA device `device`; tried once. ``None``: cannot be tried now."""
    if not triton.__version__.startswith(KNOWN_VERSIONS):
        return False
    if device not in _trusted:
        if torch.cuda.is_current_stream_capturing():
            return None
        _trusted[device] = _agrees(device)
    return _trusted[device]


def c_launcher(compiled: Any) -> Callable[[tuple[int, ...], int, Sequence[Any]], None]:
    """`compiled` as a function of grid, stream, and its arguments in order, constants too; pointers may be integers.

    Under a profiler's hooks, and for kernels that want scratch memory, it takes the public way.
    """
    run = compiled.run  # loads the kernel
    if run.global_scratch_size or run.profile_scratch_size:
        return lambda grid, stream, values: compiled[grid](*values, stream=stream)
    call = run.launch
    fixed = (
        compiled.function, run.launch_cooperative_grid, run.launch_pdl, None, None, compiled.packed_metadata,
        None, None, None,
    )  # fmt: skip
    entered, left = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook

    def launch(grid: tuple[int, ...], stream: int, values: Sequence[Any]) -> None:
        if entered.calls or left.calls:
            compiled[grid](*values, stream=stream)
        else:
            call(*grid, stream, *fixed, *values)

    return launch


@triton.jit(do_not_specialize=["value"])  # type: ignore[untyped-decorator]
def _put(out, value, ADD: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    tl.store(out, value + ADD)


def _agrees(device: int) -> bool:
    found: object
    try:
        with torch.cuda.device(device):
            out = torch.zeros(8, dtype=torch.int32, device="cuda")
            compiled = _put[(1,)](out, 40, ADD=2)
            stream = torch.cuda.current_stream().cuda_stream
            c_launcher(compiled)((1, 1, 1), stream, (out.data_ptr() + 16, 16, 2))
            found = out.tolist()
    except Exception as error:
        found = error
    if found == [42, 0, 0, 0, 18, 0, 0, 0]:
        return True
    warnings.warn(
        f"Triton {triton.__version__} does not launch as expected ({found}); kernels are launched the public way",
        LauncherWarning,
        stacklevel=2,
    )
    return False
