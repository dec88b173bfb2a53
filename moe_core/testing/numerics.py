"""Comparisons that raise, and memory that no test can pass on by luck."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from moe_core.contract.candidate import MoECandidate

FLOAT32_FLOOR = 1e-6
"""Relative error that the order of float32 additions alone may cause."""


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Frobenius norm of the difference over that of `expected`; the difference's own where `expected` is zero."""
    difference = (actual.double() - expected.double()).norm()
    norm = expected.double().norm()
    return float(difference / norm if norm else difference)


def tolerance_in(dtype: torch.dtype, declared: float) -> float:
    """The tolerance that a candidate declares (for bfloat16), in the rounding steps of `dtype`."""
    steps = torch.finfo(dtype).eps / torch.finfo(torch.bfloat16).eps
    return max(declared * steps, FLOAT32_FLOOR)


def tolerance_of(candidate: MoECandidate, dtype: torch.dtype) -> float | None:
    """The tolerance of `candidate` with activations of `dtype`; ``None`` when it declares none."""
    if candidate.tolerance is None or candidate.quantizes_activations:
        return candidate.tolerance
    return tolerance_in(dtype, candidate.tolerance)


def assert_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Same shape, no NaN, and a relative Frobenius error of at most `tolerance`."""
    assert actual.shape == expected.shape, f"shape {list(actual.shape)}, expected {list(expected.shape)}"
    broken = actual.isnan().nonzero().tolist()
    assert not broken, f"{len(broken)} NaN, the first at {broken[0]}"
    error = relative_error(actual, expected)
    assert error <= tolerance, f"relative Frobenius error {error:.3g}, tolerance {tolerance:.3g}"


def assert_bitwise_equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Same shape, element type and bits; NaN equals NaN."""
    assert actual.dtype is expected.dtype, f"{actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, f"shape {list(actual.shape)}, expected {list(expected.shape)}"
    as_bytes = (t.detach().contiguous().view(-1).view(torch.uint8) for t in (actual, expected))
    different = torch.ne(*as_bytes).count_nonzero().item()
    assert not different, f"{different} bytes differ, relative error {relative_error(actual, expected):.3g}"


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Inside, torch fills what it allocates with NaN, so that an element which nobody wrote cannot pass."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    # The filling is part of deterministic mode; warn-only, since it is not determinism that is asked for.
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*determinis.*")
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
