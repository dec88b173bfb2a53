"""The ways through the kernels: each makes a layer's output for some rows, with given tiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch

from moe_core.activation import Activation
from moe_core.fused_weights import FusedExpertWeights
from moe_plugins.triton_moe import grouped, grouped_gluon, no_sort, swap_ab
from moe_plugins.triton_moe.choice import GLUON, GROUPED, NO_SORT, SWAP_AB
from moe_plugins.triton_moe.expert_map import ExpertMap, map_experts
from moe_plugins.triton_moe.reduce import weighted_sum


class Layer(NamedTuple):
    """What does not change between calls."""

    weights: FusedExpertWeights
    activation: Activation
    top_k: int
    slot_start: int
    multiprocessors: int
    pdl: bool
    """Kernels start while their predecessors drain."""

    @property
    def num_local(self) -> int:
        """Experts of this rank."""
        return self.weights.w2_EHI.shape[0]


class PairRows(NamedTuple):
    """Outputs of experts that nobody has weighed."""

    y_RH: torch.Tensor
    expert_map: ExpertMap


def run(
    layer: Layer,
    path: str,
    config: Mapping[str, Any],
    x_TH: torch.Tensor,
    ids_TK: torch.Tensor,
    scales_TK: torch.Tensor,
) -> torch.Tensor:
    """The weighted sum of the local experts per token, ``[T, H]``, T > 0. Inputs are contiguous."""
    out_TH = torch.empty_like(x_TH)
    if path == NO_SORT:
        h_PI = x_TH.new_empty(ids_TK.numel(), layer.weights.w2_EHI.shape[2])
        no_sort.run(
            x_TH, ids_TK, scales_TK, layer.weights, layer.activation, layer.slot_start, h_PI, out_TH,
            no_sort.NoSortConfig(**config), pdl=layer.pdl,
        )  # fmt: skip
        return out_TH
    y_RH, expert_map = pair_rows(layer, path, config, x_TH, ids_TK)
    weighted_sum(y_RH, expert_map.row_of_pair, scales_TK, out_TH, pdl=layer.pdl)
    return out_TH


def pair_rows(layer: Layer, path: str, config: Mapping[str, Any], x_TH: torch.Tensor, ids_TK: torch.Tensor) -> PairRows:
    """One row per pair of token and local expert, in the map's order; `path` is one with a map.

    Raises ``ValueError`` where the two kernels' tiles cannot follow one map.
    """
    make, project_up, project_down, cut = _KERNELS[path]
    up, down = make(**config.get("up", {})), make(**config.get("down", {}))
    if cut(up) != cut(down):
        raise ValueError(f"asked for {up} and {down}; one map serves both kernels, so rows and align must be equal")
    tile, align = cut(up)
    found = map_experts(ids_TK, layer.slot_start, layer.num_local, tile=tile, align=align, pdl=layer.pdl)
    hidden, inner = layer.weights.w2_EHI.shape[1:]
    h_RI, y_RH = x_TH.new_empty(found.max_rows, inner), x_TH.new_empty(found.max_rows, hidden)
    fixed = {"pdl": layer.pdl} if path == SWAP_AB else {"pdl": layer.pdl, "programs": layer.multiprocessors}
    project_up(x_TH, found, layer.weights, layer.activation, layer.top_k, h_RI, up, **fixed)
    project_down(h_RI, found, layer.weights, y_RH, down, **fixed)
    return PairRows(y_RH, found)


class _Kernels(NamedTuple):
    make: Callable[..., Any]
    up: Callable[..., None]
    down: Callable[..., None]
    cut: Callable[[Any], tuple[int, int]]
    """Tile and alignment of the map that a config needs."""


_KERNELS: Final[Mapping[str, _Kernels]] = {
    SWAP_AB: _Kernels(swap_ab.SwapConfig, swap_ab.up, swap_ab.down, lambda config: (config.rows, 1)),
    GROUPED: _Kernels(
        grouped.GroupedConfig, grouped.up, grouped.down, lambda config: (config.rows, config.align)
    ),
    GLUON: _Kernels(
        grouped_gluon.GluonConfig, grouped_gluon.up, grouped_gluon.down,
        lambda config: (grouped_gluon.ROWS, grouped_gluon.ALIGN),
    ),
}  # fmt: skip
