"""What a module needs and moe_core lacks is refused, never computed otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


class UnsupportedExpertsError(NotImplementedError):
    """An experts module that cannot run in moe_core as it is meant; the message has every reason."""

    def __init__(self, module: nn.Module, reasons: Sequence[str], instead: str = "eager") -> None:
        self.module = module
        self.reasons = tuple(reasons)
        lines = [f"moe_core does not run {type(module).__name__}:", *reasons]
        super().__init__("\n  ".join(lines) + f'\ntry: model.set_experts_implementation("{instead}")')
