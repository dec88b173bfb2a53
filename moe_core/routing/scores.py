"""How one expert is scored from its logit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch.nn.functional import softplus

Score: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""float32 logits ``[T, E]`` to scores ``[T, E]``. Every score rises with its logit within a row."""


def softmax(logits_TE: torch.Tensor) -> torch.Tensor:
    """Softmax over all experts."""
    return torch.softmax(logits_TE, dim=-1)


def sigmoid(logits_TE: torch.Tensor) -> torch.Tensor:
    """Sigmoid, each expert by itself."""
    return torch.sigmoid(logits_TE)


def sqrt_softplus(logits_TE: torch.Tensor) -> torch.Tensor:
    """``sqrt(softplus(logit))``, each expert by itself."""
    return softplus(logits_TE).sqrt()
