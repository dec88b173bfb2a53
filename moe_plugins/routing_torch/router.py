"""The twin, bound to a problem."""

from __future__ import annotations

import torch

from moe_core.execution import Binding
from moe_core.routing import RoutingConfig, select_experts


class TorchRouter:
    """Raises ``ValueError`` when the problem's routing is unknown or contradicts itself."""

    def __init__(self, binding: Binding) -> None:
        self._config = RoutingConfig.of(binding.problem)

    def __call__(
        self,
        logits_TE: torch.Tensor,
        bias_E: torch.Tensor | None,
        input_ids_T: torch.Tensor | None,
        table_VK: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Expert ids int32 ``[T, K]`` and weights float32 ``[T, K]``."""
        return select_experts(self._config, logits_TE, bias_E, input_ids_T, table_VK)
