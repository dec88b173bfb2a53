"""The ceilings of this device, measured in half a second: bandwidth, and the rate of a matrix product."""

from __future__ import annotations

from collections.abc import Callable

import torch

from moe_core.contract.environment import MoEEnvironment
from moe_core.measure.floor import CEILINGS, Ceilings
from moe_core.measure.timing import Budget, time_calls

SIZES = {"cuda": (2**32, 8192), "cpu": (2**24, 256)}
"""Bytes of a buffer, and rows of a square matrix, by device."""


@torch.no_grad()
def measured_ceilings(device: torch.device, seed: int = 0) -> Ceilings:
    """What plain torch reaches on `device`, on random data; a kernel that only reads may be faster than torch's."""
    num_bytes, width = SIZES[device.type]
    generator = torch.Generator(device).manual_seed(seed)
    read_gb_s, copy_gb_s = _bandwidths(num_bytes, device, generator)
    return Ceilings(
        source="measured by torch in this run",
        read_gb_s=max(read_gb_s, copy_gb_s),
        copy_gb_s=copy_gb_s,
        bf16_tflop_s=_rate(width, device, generator),
    )


def known_ceilings(environment: MoEEnvironment) -> Ceilings | None:
    """The ceilings on record for such a device, if there are any."""
    return CEILINGS.get(environment.device_name or "")


def _bandwidths(num_bytes: int, device: torch.device, generator: torch.Generator) -> tuple[float, float]:
    source = torch.empty(num_bytes // 4, device=device, dtype=torch.int32).random_(generator=generator)
    target = torch.empty_like(source)
    read = _seconds(lambda: source.view(-1, 4096).amax(dim=1), device)
    copied = _seconds(lambda: target.copy_(source), device)
    return num_bytes / read / 1e9, 2 * num_bytes / copied / 1e9


def _rate(width: int, device: torch.device, generator: torch.Generator) -> float:
    a, b = (
        torch.empty(width, width, device=device, dtype=torch.bfloat16).normal_(generator=generator) for _ in range(2)
    )
    return 2 * width**3 / _seconds(lambda: a @ b, device) / 1e12


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """Median seconds of one of ten calls in a row."""
    timing = time_calls({"": (lambda index: call(), 10)}, device, Budget(0.05, least=3, most=5))
    return timing[""].median / 1e6
