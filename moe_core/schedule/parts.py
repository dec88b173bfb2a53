"""What a scheduler puts in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch

from moe_core.communication import Communication
from moe_core.execution import Binding, MoEBackend
from moe_core.schedule.abilities import UnfinalizedCombine
from moe_core.schedule.balancer import NO_BALANCER, LayerBalancer

SelectExperts: TypeAlias = Callable[[torch.Tensor, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor]]
"""Router logits ``[T, E]`` and token ids ``[T]`` to expert ids int32 ``[T, K]`` and weights float32 ``[T, K]``."""


class AuxStream(Protocol):
    """A second stream, on which every other chunk runs."""

    def fork(self) -> None:
        """What follows on it waits for the current stream."""

    def scope(self) -> AbstractContextManager[object]:
        """Inside, it is the current stream."""

    def join(self) -> None:
        """The current stream waits for it."""


@dataclass(frozen=True)
class LayerParts:
    """One backend with what surrounds it."""

    binding: Binding
    """The backend's."""
    backend: MoEBackend
    select_experts: SelectExperts
    strategies: Mapping[str, Communication]
    """Every strategy that a plan may name, by identity."""
    balancer: LayerBalancer = NO_BALANCER
    unfinalized_combine: UnfinalizedCombine | None = None
    aux: AuxStream | None = None
    """``None``: chunks run one after another."""
