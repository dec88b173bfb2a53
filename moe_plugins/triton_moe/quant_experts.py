"""Experts with quantized weights: what is particular to their kernels, and the factories of their candidates."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import torch

from moe_core.execution import Binding
from moe_plugins.triton_moe import fp8_gluon, fp8_grouped, fp8_no_sort, fp8_swap_ab, w4_gluon, w4_no_sort, w4_swap_ab
from moe_plugins.triton_moe.expert_map import ExpertMap
from moe_plugins.triton_moe.family_experts import FamilyExperts
from moe_plugins.triton_moe.fp8_gluon import Fp8GluonConfig
from moe_plugins.triton_moe.fp8_grouped import Fp8GroupedConfig
from moe_plugins.triton_moe.fp8_swap_ab import Fp8SwapConfig
from moe_plugins.triton_moe.fp8_weights import BLOCK, Fp8Rows, Fp8Weights
from moe_plugins.triton_moe.no_sort import NoSortConfig
from moe_plugins.triton_moe.options import GLUON, GROUPED, NO_SORT, SWAP_AB
from moe_plugins.triton_moe.paths import Family, Layer, Sorted, Unsorted, plain_between
from moe_plugins.triton_moe.quant_prepared import QuantPrepared, prepare_fp8
from moe_plugins.triton_moe.quant_rows import copy_pairs, quantize_mapped, quantize_pairs, quantize_rows
from moe_plugins.triton_moe.spread import spread_rows
from moe_plugins.triton_moe.w4_weights import W4Weights, prepare_w4


class Fp8Experts(FamilyExperts):
    """Tokens travel between ranks as they are multiplied: quantized."""

    def quantize_input(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """e4m3 and float32 scales ``[N, groups]`` where ranks exchange tokens; elsewhere `x`, which few tokens need."""
        if not self._binding.deployment.use_dp:
            return x, None
        num_tokens, hidden = x.shape
        rows = _rows(self._layer.weights, num_tokens, hidden, x.device)
        if num_tokens:
            with self._on_device():
                quantize_rows(x.contiguous(), rows, pdl=self._layer.pdl)
        return rows.data, rows.scales.expand(num_tokens, 1) if rows.static else rows.scales.t()


def _group(weights: Fp8Weights | W4Weights) -> int:
    return BLOCK if isinstance(weights, Fp8Weights) and weights.blocks else 0


def _rows(weights: Fp8Weights | W4Weights, num_rows: int, hidden: int, device: torch.device) -> Fp8Rows:
    """Memory for tokens."""
    if isinstance(weights, Fp8Weights) and weights.x_scale is not None:
        return Fp8Rows.empty_static(num_rows, hidden, weights.x_scale)
    return Fp8Rows.empty(num_rows, hidden, device, group=_group(weights))


def _quantized(
    layer: Layer, x_TH: torch.Tensor, x_scales_GT: torch.Tensor | None, found: ExpertMap, config: Any
) -> Fp8Rows:
    (num_tokens, hidden), group, gathers = x_TH.shape, _group(layer.weights), config.gathers
    num_rows = num_tokens if gathers else found.max_rows
    top_k = found.row_of_pair.numel() // num_tokens
    if x_scales_GT is not None:
        given = Fp8Rows(x_TH, x_scales_GT, group)
        if gathers:
            return given
        rows = Fp8Rows.empty(num_rows, hidden, x_TH.device, group=group)
        copy_pairs(given, found.row_of_pair, top_k, rows, pdl=layer.pdl)
        return rows
    rows = _rows(layer.weights, num_rows, hidden, x_TH.device)
    if gathers:
        quantize_rows(x_TH, rows, pdl=layer.pdl)
    else:
        quantize_pairs(x_TH, found.row_of_pair, top_k, rows, pdl=layer.pdl)
    return rows


def _between(layer: Layer, y_RH: torch.Tensor, num_rows: int, config: Any) -> Fp8Rows:
    inner, scale = layer.sizes[2], layer.weights.h_scale
    if scale is not None:
        return Fp8Rows.empty_static(num_rows, inner, scale)
    return Fp8Rows.empty(num_rows, inner, y_RH.device, group=config.scaled)


def _spread(
    layer: Layer, x_TH: torch.Tensor, x_scales_GT: torch.Tensor | None, found: ExpertMap, config: Any
) -> torch.Tensor:
    """Tokens as they are, or in the rows of the map where the kernel cannot gather."""
    if config.gathers:
        return x_TH
    num_tokens, hidden = x_TH.shape
    rows = x_TH.new_empty(found.max_rows, hidden)
    spread_rows(x_TH, found.row_of_pair, found.row_of_pair.numel() // num_tokens, rows, pdl=layer.pdl)
    return rows


def _quantizing_down(
    h_RI: torch.Tensor,
    found: ExpertMap,
    weights: W4Weights,
    y_RH: torch.Tensor,
    config: w4_swap_ab.W4SwapConfig,
    *,
    pdl: bool = False,
) -> None:
    # Only whole rows know their scale. With one, the tensor cores add a row's products by themselves.
    rows = Fp8Rows.empty(len(h_RI), h_RI.shape[1], h_RI.device, group=0)
    quantize_mapped(h_RI, found, rows, pdl=pdl)
    w4_swap_ab.down(rows, found, weights, y_RH, config, pdl=pdl)


def _sizes(weights: Fp8Weights | W4Weights) -> tuple[int, int, int]:
    return weights.sizes


FP8: Final = Family(
    prepared=lambda dtype: QuantPrepared(partial(prepare_fp8, dtype=dtype)),
    unsorted=Unsorted(NoSortConfig, fp8_no_sort.run),
    sorted={
        SWAP_AB: Sorted(Fp8SwapConfig, fp8_swap_ab.up, fp8_swap_ab.down, lambda config: (config.rows, 1)),
        GROUPED: Sorted(
            Fp8GroupedConfig, fp8_grouped.up, fp8_grouped.down, lambda config: (config.rows, config.align)
        ),
        GLUON: Sorted(
            Fp8GluonConfig, fp8_gluon.up, fp8_gluon.down, lambda config: (config.rows, fp8_gluon.ALIGN),
            is_persistent=True, lacks=fp8_gluon.available,
        ),
    },
    sizes=_sizes,
    tokens=_quantized,
    between=_between,
    moves=torch.float8_e4m3fn,
)  # fmt: skip
"""e4m3 weights; activations become e4m3 where there is a map."""

WORDS: Final = Family(
    prepared=lambda dtype: QuantPrepared(partial(prepare_w4, dtype=dtype)),
    unsorted=Unsorted(w4_no_sort.W4NoSortConfig, w4_no_sort.run),
    sorted={
        SWAP_AB: Sorted(w4_swap_ab.W4SwapConfig, w4_swap_ab.up, w4_swap_ab.down, lambda config: (config.rows, 1)),
        GLUON: Sorted(
            w4_gluon.W4GluonConfig,
            w4_gluon.up,
            w4_gluon.down,
            lambda config: (config.rows, w4_gluon.ALIGN),
            is_persistent=True,
            lacks=w4_gluon.available,
        ),
    },
    sizes=_sizes,
    tokens=_spread,
    between=plain_between,
)
"""Weights of four and eight bits; activations stay as they are."""

QUADS: Final = WORDS._replace(
    prepared=lambda dtype: QuantPrepared(partial(prepare_w4, dtype=dtype, e4m3=True)),
    sorted={SWAP_AB: WORDS.sorted[SWAP_AB]._replace(down=_quantizing_down)},
    tokens=_quantized,
    moves=torch.float8_e4m3fn,
)
"""MXFP4 weights; activations become e4m3, with a scale for each row, where there is a map."""


def fp8(binding: Binding) -> Fp8Experts:
    """Experts with e4m3 weights, by number of tokens."""
    return Fp8Experts(FP8, (NO_SORT, *FP8.sorted), binding)


def words(binding: Binding) -> FamilyExperts:
    """Experts with four- or eight-bit weights, by number of tokens."""
    return FamilyExperts(WORDS, (NO_SORT, *WORDS.sorted), binding)


def quads(binding: Binding) -> Fp8Experts:
    """Experts with MXFP4 weights and e4m3 activations, by number of tokens."""
    return Fp8Experts(QUADS, (NO_SORT, *QUADS.sorted), binding)
