"""What every collective of a layer does first, and what becomes of its failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from moe_core.execution import CollectiveWatch

Result = TypeVar("Result")


def joined(watch: CollectiveWatch | None, what: str, collective: Callable[..., Result], *arguments: object) -> Result:
    """What `collective` returns; what it raises, by the name of the rank that others wait for, where `watch` knows."""
    if watch is None:
        return collective(*arguments)
    watch.enter(what)
    try:
        return collective(*arguments)
    except Exception as error:
        explained = watch.explain(error)
        if explained is error:
            raise
        raise explained from error


def refuse_gradients(name: str, *tensors: torch.Tensor) -> None:
    """Raise when gradients are asked for, which would end at the exchange without a word."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        raise RuntimeError(f"{name} moves no gradients, and its inputs require them; run under torch.no_grad()")
