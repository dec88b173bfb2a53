"""The ways through the kernels of a family: each makes a layer's output for some rows, with given tiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, Final, NamedTuple, Protocol

import torch

from moe_core.activation import Activation
from moe_core.fused_weights import FusedExpertWeights
from moe_core.weights import ExpertWeights
from moe_plugins.triton_moe import grouped, grouped_gluon, no_sort, swap_ab
from moe_plugins.triton_moe.expert_map import ExpertMap, map_experts
from moe_plugins.triton_moe.options import GLUON, GROUPED, NO_SORT, SWAP_AB
from moe_plugins.triton_moe.prepared import PreparedWeights
from moe_plugins.triton_moe.reduce import weighted_sum


class PairRows(NamedTuple):
    """Outputs of experts that nobody has weighed."""

    y_RH: torch.Tensor
    expert_map: ExpertMap


class Unsorted(NamedTuple):
    """Kernels of the path without a map, for tokens that are not quantized."""

    make: Callable[..., Any]
    run: Callable[..., None]


class Sorted(NamedTuple):
    """Kernels of a path with a map."""

    make: Callable[..., Any]
    up: Callable[..., None]
    down: Callable[..., None]
    cut: Callable[[Any], tuple[int, int]]
    """Tile and alignment of the map that a config needs."""
    is_persistent: bool = False
    """Whether they want to know how many programs run at once."""
    lacks: Callable[[], str | None] = lambda: None
    """What is missing to run here."""


class Prepared(Protocol):
    """Weights as a family's kernels read them, in memory whose addresses stay when others of their form are loaded."""

    @property
    def version(self) -> int:
        """Changes with the addresses."""

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are wanted of what was loaded."""

    @property
    def weights(self) -> Any:
        """The weights; raises ``RuntimeError`` before any are loaded."""

    def copy(self, weights: ExpertWeights) -> None:
        """Copy `weights`; a second time into the same memory, which CUDA graphs may read."""

    def tensors(self) -> list[torch.Tensor]:
        """What the kernels read."""


class Family(NamedTuple):
    """Kernels that read the same weights."""

    prepared: Callable[[torch.dtype], Prepared]
    """Memory for weights, beside activations of that type."""
    unsorted: Unsorted
    sorted: Mapping[str, Sorted]
    """By path."""
    sizes: Callable[[Any], tuple[int, int, int]]
    """Experts, H and I of weights."""
    tokens: Callable[[Layer, torch.Tensor, torch.Tensor | None, ExpertMap, Any], Any]
    """What `up` with a config reads of tokens, and of their scales by group of columns where they came quantized."""
    between: Callable[[Layer, torch.Tensor, int, Any], Any]
    """Memory beside an output for so many rows of what `up` with a config writes, and `down` reads."""
    moves: torch.dtype | None = None
    """Element type of tokens that come quantized; ``None``: they never do."""

    def tiles(self, path: str, config: Mapping[str, Any]) -> tuple[Any, ...]:
        """The configs of `path`'s kernels: one without a map, else of `up` and `down`.

        Raises ``ValueError`` for what no kernel is told, and where the two kernels' tiles cannot follow one map.
        """
        if path == NO_SORT:
            return (_config(self.unsorted.make, config),)
        way = self.sorted[path]
        if odd := config.keys() - {"up", "down"}:
            raise ValueError(f"asked for {', '.join(sorted(odd))} of {path}; needed up and down, with tiles of each")
        up, down = _config(way.make, config.get("up", {})), _config(way.make, config.get("down", {}))
        if way.cut(up) != way.cut(down):
            raise ValueError(f"asked for {up} and {down}; one map serves both kernels, so rows and align must be equal")
        return up, down

    def lacks(self, path: str) -> str | None:
        """What is missing to run `path` here."""
        return self.sorted[path].lacks() if path in self.sorted else None


def _config(make: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    try:
        return make(**given)
    except TypeError as error:
        known = ", ".join(signature(make).parameters)
        raise ValueError(f"asked for tiles of {given}; needed fields among {known}") from error


def plain_tokens(
    layer: Layer, x_TH: torch.Tensor, x_scales_GT: torch.Tensor | None, found: ExpertMap, config: Any
) -> torch.Tensor:
    """Tokens as they are."""
    return x_TH


def plain_between(layer: Layer, y_RH: torch.Tensor, num_rows: int, config: Any) -> torch.Tensor:
    """Activations that are not quantized."""
    return y_RH.new_empty(num_rows, layer.sizes[2])


def _sizes(weights: FusedExpertWeights) -> tuple[int, int, int]:
    num_local, hidden, inner = weights.w2_EHI.shape
    return num_local, hidden, inner


PLAIN: Final = Family(
    prepared=lambda dtype: PreparedWeights(),
    unsorted=Unsorted(no_sort.NoSortConfig, no_sort.run),
    sorted={
        SWAP_AB: Sorted(swap_ab.SwapConfig, swap_ab.up, swap_ab.down, lambda config: (config.rows, 1)),
        GROUPED: Sorted(
            grouped.GroupedConfig, grouped.up, grouped.down, lambda config: (config.rows, config.align),
            is_persistent=True,
        ),
        GLUON: Sorted(
            grouped_gluon.GluonConfig, grouped_gluon.up, grouped_gluon.down,
            lambda config: (grouped_gluon.ROWS, grouped_gluon.ALIGN),
            is_persistent=True, lacks=grouped_gluon.available,
        ),
    },
    sizes=_sizes,
    tokens=plain_tokens,
    between=plain_between,
)  # fmt: skip
"""Weights of the activations' type."""


class Layer(NamedTuple):
    """What does not change between calls."""

    weights: Any
    """As the family's kernels read them."""
    family: Family
    dtype: torch.dtype
    """Of the output."""
    activation: Activation
    slot_start: int
    multiprocessors: int
    pdl: bool
    """Kernels start while their predecessors drain."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Experts of this rank, H and I."""
        return self.family.sizes(self.weights)


def run(
    layer: Layer,
    path: str,
    config: Mapping[str, Any],
    x_TH: torch.Tensor,
    ids_TK: torch.Tensor,
    scales_TK: torch.Tensor,
    x_scales_GT: torch.Tensor | None = None,
) -> torch.Tensor:
    """The weighted sum of the local experts per token, ``[T, H]``, T > 0. Inputs are contiguous.

    With `x_scales_GT`, tokens came quantized, and `path` is one with a map.
    """
    _, hidden, inner = layer.sizes
    out_TH = x_TH.new_empty(len(ids_TK), hidden, dtype=layer.dtype)
    if path == NO_SORT:
        h_PI = out_TH.new_empty(ids_TK.numel(), inner)
        (made,) = layer.family.tiles(path, config)
        layer.family.unsorted.run(
            x_TH, ids_TK, scales_TK, layer.weights, layer.activation, layer.slot_start, h_PI, out_TH,
            made, pdl=layer.pdl,
        )  # fmt: skip
        return out_TH
    y_RH, expert_map = pair_rows(layer, path, config, x_TH, ids_TK, x_scales_GT)
    weighted_sum(y_RH, expert_map.row_of_pair, scales_TK, out_TH, pdl=layer.pdl)
    return out_TH


def pair_rows(
    layer: Layer,
    path: str,
    config: Mapping[str, Any],
    x_TH: torch.Tensor,
    ids_TK: torch.Tensor,
    x_scales_GT: torch.Tensor | None = None,
) -> PairRows:
    """One row per pair of token and local expert, in the map's order; `path` is one with a map.

    Raises ``ValueError`` where the two kernels' tiles cannot follow one map.
    """
    family = layer.family
    way = family.sorted[path]
    up, down = family.tiles(path, config)
    tile, align = way.cut(up)
    num_local, hidden, _ = layer.sizes
    found = map_experts(ids_TK, layer.slot_start, num_local, tile=tile, align=align, pdl=layer.pdl)
    y_RH = x_TH.new_empty(found.max_rows, hidden, dtype=layer.dtype)
    x = family.tokens(layer, x_TH, x_scales_GT, found, up)
    h = family.between(layer, y_RH, found.max_rows, up)
    fixed = {"pdl": layer.pdl, **({"programs": layer.multiprocessors} if way.is_persistent else {})}
    way.up(x, found, layer.weights, layer.activation, ids_TK.shape[1], h, up, **fixed)
    way.down(h, found, layer.weights, y_RH, down, **fixed)
    return PairRows(y_RH, found)
