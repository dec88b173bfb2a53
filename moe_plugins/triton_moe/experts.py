"""Routed experts in Triton: one backend, whose kernels are chosen by the number of tokens or fixed."""

from __future__ import annotations

from functools import partial

import torch

from moe_core.execution import Binding
from moe_core.fused_weights import FusedExpertWeights
from moe_plugins.triton_moe.family_experts import FamilyExperts
from moe_plugins.triton_moe.gradients import run_recorded
from moe_plugins.triton_moe.options import GLUON, GROUPED, NO_SORT, PATHS, SWAP_AB
from moe_plugins.triton_moe.paths import PLAIN
from moe_plugins.triton_moe.prepared import PreparedWeights


class TritonExperts(FamilyExperts):
    """Holds weights as they came where they are in the kernels' layout, and else a copy.

    The kernels compute what comes out, and torch's operations, from the same inputs, the gradients.
    """

    def __init__(self, paths: tuple[str, ...], binding: Binding) -> None:
        super().__init__(PLAIN, paths, binding)

    def prepare_fused(self, weights: FusedExpertWeights) -> None:
        """Keep `weights`, and see what is updated in them in place; or copy them, where gate and up take turns or
        memory is in another order."""
        prepared = self._prepared or PreparedWeights()
        prepared.take(weights)
        self.adopt(prepared)

    def _differentiated(self, *inputs: torch.Tensor) -> torch.Tensor:
        x_NH, ids_NK, scales_NK = inputs
        activation, slot_start = self._binding.activation, self._binding.slot_start
        return run_recorded(self._run, self._prepared, activation, slot_start, x_NH, ids_NK, scales_NK)


any_path = partial(TritonExperts, PATHS)
no_sort_only = partial(TritonExperts, (NO_SORT,))
swap_ab_only = partial(TritonExperts, (SWAP_AB,))
grouped_only = partial(TritonExperts, (GROUPED,))
gluon_only = partial(TritonExperts, (GLUON,))
