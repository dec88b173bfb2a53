"""Many rows per expert with four- or eight-bit weights: a grouped matrix product that keeps Hopper's tensor cores busy,
in Gluon.

Tiles of 128 or 160 rows and 128 weight rows, one persistent program per multiprocessor. The tensor cores read weights
from registers, into which a program's warps unpack them while the tensor cores work, and tokens from shared memory.
Those are copied into the rows of the map by :func:`~moe_plugins.triton_moe.spread.spread_rows`, so that the memory
engine can bring them as it brings weights.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch

from moe_core.activation import Activation
from moe_core.contract.vocabulary import ActivationType
from moe_plugins.triton_moe.activation import activation_meta
from moe_plugins.triton_moe.expert_map import ExpertMap
from moe_plugins.triton_moe.grouped_gluon import ALIGN, _boxes, available
from moe_plugins.triton_moe.launch import launch
from moe_plugins.triton_moe.w4_weights import W4Matrix, W4Weights
from moe_plugins.triton_moe.w4_words import FP4, INT4, INT4_ZERO, INT8, WordFormat, code_words, scale_words

__all__ = ["ALIGN", "W4GluonConfig", "available", "down", "up"]

SHARED_MEMORY: Final = 227 * 1024
"""Bytes of a program, at most."""
OTHER_MEMORY: Final = 21 * 1024
"""Of those, what is no stage: rows to be stored, barriers and, with tiles of 128 rows, a box that is not used."""


class W4GluonConfig(NamedTuple):
    """How one of the two kernels is cut."""

    rows: int = 160
    """Rows of a tile, the map's `tile`: 128, or 160 where many experts have a few more than multiples of 128."""
    stages: int = 0
    """Of a ring in shared memory; 0: as many as fit, 4 of four-bit weights, 3 of eight-bit ones, with 128 rows one
    more."""
    group: int = 8
    """Row tiles that sweep the columns together."""
    short: int = 32
    """Tiles of at most as many rows, 32, 64 or 96, are multiplied at this height; 0: of at most 128, at that."""

    @property
    def gathers(self) -> bool:
        """Tokens lie in rows of the map already."""
        return False


def up(
    x_RH: torch.Tensor,
    found: ExpertMap,
    weights: W4Weights,
    activation: Activation,
    top_k: int,
    h_RI: torch.Tensor,
    config: W4GluonConfig,
    *,
    programs: int,
    pdl: bool = False,
) -> None:
    """FC1 and the activation of every row of the map, into `h_RI`; `programs` is the number of multiprocessors.

    `x_RH` are tokens in the rows of the map, bfloat16 or float16; H and I multiples of 8. Rows of `h_RI` that are no
    pairs are undefined. Raises ``ValueError`` for words that become e4m3, and for a `config` that cannot be.
    """
    _, hidden, inter = weights.sizes
    meta = {"K": hidden, "COLUMNS": inter, "GATED": weights.gated, **activation_meta(activation)}
    _launch(x_RH, found, weights, weights.fc1, weights.b1, h_RI, config, programs, pdl, meta)


def down(
    h_RI: torch.Tensor,
    found: ExpertMap,
    weights: W4Weights,
    y_RH: torch.Tensor,
    config: W4GluonConfig,
    *,
    programs: int,
    pdl: bool = False,
) -> None:
    """FC2 of every row of the map, into `y_RH`; not weighed. Sizes and errors as for :func:`up`."""
    _, hidden, inter = weights.sizes
    identity = activation_meta(Activation(ActivationType.IDENTITY))
    meta = {"K": inter, "COLUMNS": hidden, "GATED": False, **identity}
    _launch(h_RI, found, weights, weights.w2, weights.b2, y_RH, config, programs, pdl, meta)


def _launch(
    x: torch.Tensor,
    found: ExpertMap,
    weights: W4Weights,
    matrix: W4Matrix,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    config: W4GluonConfig,
    programs: int,
    pdl: bool,
    meta: dict[str, object],
) -> None:
    stages = config.stages or _most_stages(weights.format, config.rows)
    _check(weights, config)
    from moe_plugins.triton_moe.w4_gluon_kernels import grouped_words_gemm

    cut = {"STAGES": stages, "GROUP": config.group, "SHORT": config.short}
    kind, scaled = weights.format
    args = (
        _boxes(x, 64, 64), _boxes(x, 32, 64) if config.rows == 160 else None,
        _word_boxes(matrix.words.flatten(0, 2)), matrix.scales, matrix.row_scale, bias,
        _boxes(out, 32, 32),
        found.tile_expert, found.tile_row, found.tile_rows, found.num_tiles, found.turns,
    )  # fmt: skip
    meta = {**meta, **cut, "FORMAT": kind, "SCALED": scaled, "PDL": pdl}
    launch(grouped_words_gemm, (programs,), args, meta, num_warps=4, pdl=pdl)


def _most_stages(words: WordFormat, rows: int) -> int:
    """Of 128 columns of tokens and weights."""
    stage = 2 * 128 * rows + 4 * 128 * (code_words(words.kind) + max(scale_words(*words), 1))
    return int((SHARED_MEMORY - OTHER_MEMORY) // stage)


def _check(weights: W4Weights, config: W4GluonConfig) -> None:
    kinds = (FP4, INT4, INT4_ZERO, INT8)
    if weights.format.kind not in kinds:
        raise ValueError(f"found words of {weights.format.kind}; needed {', '.join(kinds)}; try w4_swap_ab")
    if config.rows not in (128, 160):
        raise ValueError(f"asked for {config}; rows needs to be 128 or 160")
    if config.short not in (0, 32, 64, 96):
        raise ValueError(f"asked for {config}; short needs to be 0, 32, 64 or 96")


def _word_boxes(words: torch.Tensor) -> Any:
    """The description of words ``[rows of all blocks, words of a block]`` in boxes of 64 rows."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    width = words.shape[1]
    layout = gl.NVMMASharedLayout.get_default_for([64, width], gl.int32)
    return TensorDescriptor(words, list(words.shape), [width, 1], [64, width], layout)
