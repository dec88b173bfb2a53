"""Weights as all our kernels read them: gate rows above up rows, contiguous in the inner dimension, not quantized."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import torch

from moe_core.fused_weights import FusedExpertWeights
from moe_core.weights import ExpertWeights

LAYOUT: Final = "fc1_halves_k_major"
"""Name of this layout, for candidates that share one copy."""

_ALIGNMENT: Final = 16


class PreparedWeights:
    """Weights in :data:`LAYOUT`, in memory whose addresses stay when others are loaded without gradients."""

    def __init__(self) -> None:
        self._weights: FusedExpertWeights | None = None
        self._given: FusedExpertWeights | None = None
        self._leaves: tuple[torch.Tensor, ...] = ()
        self._copies: ExpertWeights | None = None
        self.version = 0
        """Changes with the addresses."""
        self.severed = False
        """Weights that want gradients were copied where no graph was recorded, so none can reach them."""

    @property
    def weights(self) -> FusedExpertWeights:
        """The weights as kernels read them; raises ``RuntimeError`` before any are loaded."""
        return _loaded(self._weights)

    @property
    def given(self) -> FusedExpertWeights:
        """The same, with the graph by which gradients reach what was loaded."""
        return _loaded(self._given)

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are wanted of what was loaded."""
        return self.severed or any(tensor.requires_grad for tensor in self._leaves)

    def copy(self, weights: ExpertWeights) -> None:
        """Copy `weights`; a second time into the same memory, which CUDA graphs may read.

        Where their gradients are recorded, the copy is part of that graph, and so a new one.
        """
        wanted = any(tensor.requires_grad for tensor in weights.tensors().values())
        self.severed = wanted and not torch.is_grad_enabled()
        if wanted and not self.severed:
            self._keep(FusedExpertWeights.joined(weights))
        elif self._copies is not None and _alike(self._copies, weights):
            self._copies.overwrite(weights)
        else:
            # Inference tensors could not be written to later, outside of that mode.
            with torch.inference_mode(False), torch.no_grad():
                self._keep(FusedExpertWeights.joined(weights))
            self._copies = self.weights.apart()

    def take(self, weights: FusedExpertWeights) -> None:
        """Keep `weights` where they are in the layout already; else copy them, as :meth:`copy` does."""
        if weights.interleaved or not all(_is_ready(tensor) for tensor in weights.tensors().values()):
            self.copy(weights.apart())
            return
        self.severed = False
        self._keep(weights)

    def tensors(self) -> list[torch.Tensor]:
        """What the kernels read."""
        return list(self.weights.tensors().values())

    def _keep(self, given: FusedExpertWeights) -> None:
        self._given, self._leaves, self._copies = given, tuple(given.tensors().values()), None
        if self._weights is None or _addresses(self._weights) != _addresses(given):
            detached: dict[str, Any] = {name: tensor.detach() for name, tensor in given.tensors().items()}
            self._weights, self.version = replace(given, **detached), self.version + 1


def _loaded(weights: FusedExpertWeights | None) -> FusedExpertWeights:
    if weights is None:
        raise RuntimeError("the experts have no weights yet: call prepare first")
    return weights


def _addresses(weights: FusedExpertWeights) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in weights.tensors().items()}


def _is_ready(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and tensor.data_ptr() % _ALIGNMENT == 0


def _alike(one: ExpertWeights, other: ExpertWeights) -> bool:
    first, second = one.tensors(), other.tensors()
    return first.keys() == second.keys() and all(
        t.shape == second[n].shape and t.dtype is second[n].dtype and t.device == second[n].device
        for n, t in first.items()
    )
