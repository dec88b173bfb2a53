"""A routing method with the tensors that it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

Route: TypeAlias = Callable[
    [torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor]
]
"""Logits ``[T, E]``, correction bias ``[E]``, token ids ``[T]`` and table of experts ``[vocabulary, K]`` to expert ids
int32 ``[T, K]`` and weights float32 ``[T, K]``."""


class Router(torch.nn.Module):
    """The bias and the table belong to the model's checkpoint: they follow the module, and stay out of its state."""

    bias: torch.Tensor | None
    table: torch.Tensor | None

    def __init__(self, route: Route, bias_E: torch.Tensor | None, table_VK: torch.Tensor | None) -> None:
        super().__init__()
        self._route = route
        self.register_buffer("bias", bias_E, persistent=False)
        self.register_buffer("table", table_VK, persistent=False)

    @property
    def bias_now(self) -> torch.Tensor | None:
        """`bias`; a module's own lookup takes the host longer than the rest of a call."""
        return self._buffers["bias"]

    @property
    def route(self) -> Route:
        """What it routes by."""
        return self._route

    def replace(self, route: Route) -> Route:
        """Route by `route` from now on; returns what did it before."""
        before, self._route = self._route, route
        return before

    def forward(
        self, logits_TE: torch.Tensor, input_ids_T: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Expert ids int32 ``[T, K]`` and weights float32 ``[T, K]``."""
        return self._route(logits_TE, self.bias_now, input_ids_T, self._buffers["table"])
