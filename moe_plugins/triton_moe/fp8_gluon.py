"""Many rows per expert in fp8: a grouped matrix product that keeps Hopper's tensor cores busy, in Gluon.

Tiles of 128 rows and 128 columns, or of `down` 256, or tiles of 192 rows and 128 columns; one persistent program per
multiprocessor. Tokens are copied into the rows of the map as they are quantized, by
:func:`~moe_plugins.triton_moe.quant_rows.quantize_pairs`, so that the memory engine can bring them, too.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

from moe_core.activation import Activation
from moe_core.contract.vocabulary import ActivationType
from moe_plugins.triton_moe.activation import activation_meta
from moe_plugins.triton_moe.expert_map import ExpertMap
from moe_plugins.triton_moe.fp8_weights import BLOCK, Fp8Rows, Fp8Weights
from moe_plugins.triton_moe.grouped_gluon import ALIGN, _boxes, available
from moe_plugins.triton_moe.launch import launch

__all__ = ["ALIGN", "Fp8GluonConfig", "available", "down", "up"]

TALL: Final = 192
"""Rows of three consumers of 64, whose registers have room for the sums of one block of columns."""


class Fp8GluonConfig(NamedTuple):
    """How one of the two kernels is cut."""

    stages: int = 0
    """Of a ring in shared memory; 0: as many as fit, 6 of `up` with 128 rows, else 4."""
    group: int = 8
    """Row tiles that sweep the columns together."""
    rows: int = 128
    """Rows of a tile, the map's `tile`: 128, or 192, which share the weights of a column among more."""

    @property
    def gathers(self) -> bool:
        """Tokens lie in rows of the map already."""
        return False

    @property
    def scaled(self) -> int:
        """Columns of h that `up` gives one scale."""
        return BLOCK


def up(
    x: Fp8Rows,
    found: ExpertMap,
    weights: Fp8Weights,
    activation: Activation,
    top_k: int,
    h: Fp8Rows,
    config: Fp8GluonConfig,
    *,
    programs: int,
    pdl: bool = False,
) -> None:
    """FC1 and the activation of every row of the map, into `h`; `programs` is the number of multiprocessors.

    `x` are tokens in the rows of the map. Rows of `h`, which is static or in groups of 128 columns, are undefined where
    they are no pairs. Raises ``ValueError`` for other groups of columns, and for a `config` that cannot be.
    """
    _, hidden, inter = weights.sizes
    _check(x, (0, BLOCK))
    _check(h, (0, BLOCK) if h.static else (BLOCK,))
    _launch(
        x, found, weights.fc1, weights.s1, weights.r1, weights.b1_EG, h.data, h.scales, config, programs, pdl,
        {
            "K": hidden, "COLUMNS": inter, "PASSES": weights.halves, "BOXES": 1, "W_BLOCKS": weights.blocks,
            "H_STATIC": h.static, **activation_meta(activation),
        },
    )  # fmt: skip


def down(
    h: Fp8Rows,
    found: ExpertMap,
    weights: Fp8Weights,
    y_RH: torch.Tensor,
    config: Fp8GluonConfig,
    *,
    programs: int,
    pdl: bool = False,
) -> None:
    """FC2 of every row of the map, into `y_RH`, bfloat16 or float16; not weighed. Raises as :func:`up` does."""
    _, hidden, inter = weights.sizes
    _check(h, (0, BLOCK))
    identity = activation_meta(Activation(ActivationType.IDENTITY))
    _launch(
        h, found, weights.w2, weights.s2, weights.r2, weights.b2_EH, y_RH, None, config, programs, pdl,
        {
            "K": inter, "COLUMNS": hidden, "PASSES": 1, "BOXES": 1 if config.rows == TALL else 2,
            "W_BLOCKS": weights.blocks, "H_STATIC": False, **identity,
        },
    )  # fmt: skip


def _check(rows: Fp8Rows, groups: tuple[int, ...]) -> None:
    if rows.group not in groups:
        by = [f"{group or 'all'} columns" for group in (rows.group, *groups)]
        raise ValueError(f"asked for scales of {by[0]} of rows; the Gluon kernels need those of {' or '.join(by[1:])}")


def _launch(
    x: Fp8Rows,
    found: ExpertMap,
    w: torch.Tensor,
    w_scales: torch.Tensor,
    factors: torch.Tensor | None,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    out_scales: torch.Tensor | None,
    config: Fp8GluonConfig,
    programs: int,
    pdl: bool,
    meta: dict[str, object],
) -> None:
    if config.rows not in (128, TALL):
        raise ValueError(f"asked for {config}; rows needs to be 128 or {TALL}")
    from moe_plugins.triton_moe.fp8_gluon_kernels import grouped_fp8_gemm

    stages = config.stages or (6 if out_scales is not None and config.rows < TALL else 4)
    cut = {"PARTS": config.rows // 64, "BLOCK": BLOCK, "STAGES": stages, "GROUP": config.group}
    args = (
        _boxes(x.data, 64, BLOCK), x.scales, _boxes(w.flatten(0, 2), BLOCK, BLOCK), w_scales, factors, bias,
        _boxes(out, 64, BLOCK if out_scales is not None or stages < 4 else BLOCK // 2), out_scales,
        found.tile_expert, found.tile_row, found.tile_rows, found.num_tiles, found.turns,
    )  # fmt: skip
    launch(grouped_fp8_gemm, (programs,), args, {**meta, **cut, **x.meta, "PDL": pdl}, num_warps=4, pdl=pdl)
