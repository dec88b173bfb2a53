"""Weights as all our kernels read them: gate rows above up rows, contiguous in the inner dimension, not quantized."""

from __future__ import annotations

from typing import Final

import torch

from moe_core.fused_weights import FusedExpertWeights
from moe_core.weights import ExpertWeights

LAYOUT: Final = "fc1_halves_k_major"
"""Name of this layout, for candidates that share one copy."""

_ALIGNMENT: Final = 16


class PreparedWeights:
    """Weights in :data:`LAYOUT`, in memory whose addresses stay when others are loaded."""

    def __init__(self) -> None:
        self._weights: FusedExpertWeights | None = None
        self._copies: ExpertWeights | None = None
        self.version = 0
        """Changes with the addresses."""
        self.requires_grad = False
        """Whether gradients are wanted of what was loaded; nothing here has any."""

    @property
    def weights(self) -> FusedExpertWeights:
        """The weights; raises ``RuntimeError`` before any are loaded."""
        if self._weights is None:
            raise RuntimeError("the experts have no weights yet: call prepare first")
        return self._weights

    def copy(self, weights: ExpertWeights) -> None:
        """Copy `weights`; a second time into the same memory, which CUDA graphs may read."""
        self.requires_grad = any(tensor.requires_grad for tensor in weights.tensors().values())
        if self._copies is not None and _alike(self._copies, weights):
            self._copies.overwrite(weights)
            return
        # Inference tensors could not be written to later, outside of that mode.
        with torch.inference_mode(False), torch.no_grad():
            self._set(FusedExpertWeights.joined(weights))
        self._copies = self.weights.apart()

    def take(self, weights: FusedExpertWeights) -> None:
        """Keep `weights` where they are in the layout already; else copy them, as :meth:`copy` does."""
        if weights.interleaved or not all(_is_ready(tensor) for tensor in _tensors(weights)):
            self.copy(weights.apart())
            return
        self._copies = None
        self.requires_grad = any(tensor.requires_grad for tensor in _tensors(weights))
        self._set(
            FusedExpertWeights(
                weights.fc1_EGH.detach(),
                weights.w2_EHI.detach(),
                _detached(weights.fc1_bias_EG),
                _detached(weights.b2_EH),
                weights.gated,
            )
        )

    def tensors(self) -> list[torch.Tensor]:
        """What the kernels read."""
        return _tensors(self.weights)

    def _set(self, weights: FusedExpertWeights) -> None:
        self._weights, self.version = weights, self.version + 1


def _tensors(weights: FusedExpertWeights) -> list[torch.Tensor]:
    found = (weights.fc1_EGH, weights.w2_EHI, weights.fc1_bias_EG, weights.b2_EH)
    return [tensor for tensor in found if tensor is not None]


def _is_ready(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and tensor.data_ptr() % _ALIGNMENT == 0


def _detached(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach()


def _alike(one: ExpertWeights, other: ExpertWeights) -> bool:
    first, second = one.tensors(), other.tensors()
    return first.keys() == second.keys() and all(
        t.shape == second[n].shape and t.dtype is second[n].dtype and t.device == second[n].device
        for n, t in first.items()
    )
