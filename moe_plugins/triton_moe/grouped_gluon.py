"""Many rows per expert: a grouped matrix product that keeps Hopper's tensor cores busy, in Gluon.

Tiles of 128 rows and up to 256 weight rows, one persistent program per multiprocessor, weights and rows brought by the
memory engine while the tensor cores work. Gluon is Triton's lower level, and its names move between versions:
:func:`available` says whether this one will do.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
import triton

from moe_core.activation import Activation
from moe_core.contract.vocabulary import ActivationType
from moe_core.fused_weights import FusedExpertWeights
from moe_plugins.triton_moe.activation import activation_meta
from moe_plugins.triton_moe.expert_map import ExpertMap
from moe_plugins.triton_moe.launch import launch

ROWS: Final = 128
"""Rows of a tile: the map's `tile`."""
ALIGN: Final = 64
"""The map's `align`: half a tile of rows belongs to one expert, so that it can be stored whole."""
BLOCK: Final = 64
"""Of the inner dimension, per stage: 128 bytes, as wide as the swizzle, so that boxes lie end to end."""
VERSIONS: Final = ("3.6",)
"""Of Triton, that the kernels have run on."""


class GluonConfig(NamedTuple):
    """How one of the two kernels is cut."""

    columns: int = 256
    """Weight rows of a tile, 128 or 256: as many output columns, or half of them gated."""
    stages: int = 4
    """4 with 256 columns or 6 with 128 fill the shared memory."""
    group: int = 8
    """Row tiles that sweep the columns together."""
    lead: int = 0
    """Stages by which one half of a tile's rows is ahead of the other: one stores while the other multiplies."""


def available() -> str | None:
    """Why this kernel cannot run here, or ``None`` when it can."""
    version = ".".join(triton.__version__.split(".")[:2])
    if version not in VERSIONS:
        return f"Gluon kernels need Triton {' or '.join(VERSIONS)}, found {triton.__version__}"
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        return "Gluon kernels need a Hopper GPU"
    return None


def up(
    x_TH: torch.Tensor,
    found: ExpertMap,
    weights: FusedExpertWeights,
    activation: Activation,
    top_k: int,
    h_RI: torch.Tensor,
    config: GluonConfig,
    *,
    programs: int,
    pdl: bool = False,
) -> None:
    """FC1 and the activation of every row of the map, into `h_RI`; `programs` is the number of multiprocessors.

    H a multiple of 64 and I one of 8, bfloat16 or float16. Of `h_RI`, rows that are no pairs are undefined.
    """
    _, hidden, inter = weights.w2_EHI.shape
    box = config.columns // 2 if weights.gated else min(config.columns, 128)
    _launch(
        x_TH, found, weights.fc1_EGH, weights.fc1_bias_EG, _boxes(h_RI, 64, box), config, programs, pdl,
        {"K": hidden, "COLUMNS": inter, "GATED": weights.gated, "TOP_K": top_k, **activation_meta(activation)},
    )  # fmt: skip


def down(
    h_RI: torch.Tensor,
    found: ExpertMap,
    weights: FusedExpertWeights,
    y_RH: torch.Tensor,
    config: GluonConfig,
    *,
    programs: int,
    pdl: bool = False,
) -> None:
    """FC2 of every row of the map, into `y_RH`; not weighed. H and I multiples of 8, bfloat16 or float16."""
    _, hidden, inter = weights.w2_EHI.shape
    identity = activation_meta(Activation(ActivationType.IDENTITY))
    _launch(
        _boxes(h_RI, 64, BLOCK), found, weights.w2_EHI, weights.b2_EH, _boxes(y_RH, 64, 128), config,
        programs, pdl, {"K": inter, "COLUMNS": hidden, "GATED": False, "TOP_K": 0, **identity},
    )  # fmt: skip


def _launch(
    x: Any,
    found: ExpertMap,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    out: Any,
    config: GluonConfig,
    programs: int,
    pdl: bool,
    meta: dict[str, object],
) -> None:
    from moe_plugins.triton_moe.grouped_gluon_kernels import grouped_gemm

    if config.lead > config.stages - 2:
        # The leader would wait for stages that the other consumer does not free before it is told to start.
        raise ValueError(f"asked for {config}; lead needs at least two stages more; try lead={config.stages - 2}")
    tile = {"BN": config.columns, "BK": BLOCK, "STAGES": config.stages, "GROUP": config.group}
    args = (
        x, _boxes(w.flatten(0, 1), config.columns // 2, BLOCK), bias, out, found.pair_of_row,
        found.tile_expert, found.tile_row, found.tile_rows, found.num_tiles, found.turns,
    )  # fmt: skip
    launch(grouped_gemm, (programs,), args, {**meta, **tile, "LEAD": config.lead, "PDL": pdl}, num_warps=4, pdl=pdl)


def _boxes(matrix: torch.Tensor, rows: int, columns: int) -> Any:
    """The description of a matrix by which the memory engine copies boxes of it; what is outside reads as zero."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    dtypes = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float8_e4m3fn: gl.float8e4nv}
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], dtypes[matrix.dtype])
    return TensorDescriptor(matrix, list(matrix.shape), [matrix.shape[1], 1], [rows, columns], layout)
