"""The two projections of many rows per expert: tensor-core tiles over the rows in the order of an expert map.

Weights stream through tensor descriptors. The rows of the first projection are gathered from the tokens as they are
read, so nothing is permuted in memory; those of the second lie together already.
"""

# Kernels are functions of tiles, for which Python has no types; their names are those of the formulas.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202, E741

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from moe_core.activation import Activation
from moe_core.fused_weights import FusedExpertWeights
from moe_plugins.triton_moe.activation import activate, activation_meta
from moe_plugins.triton_moe.expert_map import ExpertMap
from moe_plugins.triton_moe.launch import launch

SHORT: Final = 64
"""Rows of the smallest tile of the tensor cores, and of a tile that a mixed kernel computes at half its height."""


class GroupedConfig(NamedTuple):
    """How one of the two kernels is cut into tiles, one per program."""

    rows: int = 128
    """Of a tile: the map's `tile`."""
    align: int = 64
    """The map's `align`; of 64 or more, where full-height tiles may store their padding too, stores are cheaper."""
    columns: int = 128
    """Output columns of a tile; where they are gated, twice as many weight rows."""
    block: int = 64
    """Of the inner dimension, per stage."""
    warps: int = 8
    stages: int = 3
    group: int = 8
    """Row tiles that sweep the columns together, so that they find each other's weights in the cache."""
    persistent: bool = False
    """Each program takes several tiles, and stores one while it loads the next: for a short inner dimension."""
    mixed: bool = False
    """Tiles of at most 64 rows cost half: for experts whose last tile is mostly empty. Not with `persistent`."""

    @property
    def stores_boxes(self) -> bool:
        """Whether a full-height tile owns all its rows, padding included, and may store them at once.

        Those of a mixed kernel have more than 64 rows, which an `align` of 64 rounds up to all 128.
        """
        return self.align % (SHORT if self.mixed else self.rows) == 0


def up(
    x_TH: torch.Tensor,
    found: ExpertMap,
    weights: FusedExpertWeights,
    activation: Activation,
    top_k: int,
    h_RI: torch.Tensor,
    config: GroupedConfig,
    *,
    programs: int,
    pdl: bool = False,
) -> None:
    """FC1 and the activation of every row of the map, into `h_RI`; `programs` is the number of multiprocessors.

    H and I multiples of 8, bfloat16 or float16; gate and up not interleaved. Of `h_RI`, rows that are no pairs are
    undefined.
    """
    num_local, hidden, inter = weights.w2_EHI.shape
    halves = 2 if weights.gated else 1
    # Gate and up apart: one box holds the same columns of both, and ends where each of them ends.
    fc1 = TensorDescriptor(
        weights.fc1_EGH, [num_local * halves, inter, hidden], [inter * hidden, hidden, 1],
        [halves, config.columns, config.block],
    )  # fmt: skip
    h_box = _box(h_RI, config.rows, config.columns) if config.stores_boxes else None
    _launch(
        _up, (x_TH, fc1, weights.fc1_bias_EG, h_RI, h_box, found.pair_of_row), found, config, inter, programs, pdl,
        {"H": hidden, "I": inter, "K": top_k, "HALVES": halves, **activation_meta(activation)},
    )  # fmt: skip


def down(
    h_RI: torch.Tensor,
    found: ExpertMap,
    weights: FusedExpertWeights,
    y_RH: torch.Tensor,
    config: GroupedConfig,
    *,
    programs: int,
    pdl: bool = False,
) -> None:
    """FC2 of every row of the map, into `y_RH`; not weighed. H and I multiples of 8, bfloat16 or float16."""
    num_local, hidden, inter = weights.w2_EHI.shape
    w2 = TensorDescriptor(
        weights.w2_EHI, [num_local, hidden, inter], [hidden * inter, inter, 1], [1, config.columns, config.block]
    )
    h_short = _box(h_RI, SHORT, config.block) if config.mixed else None
    y_box = _box(y_RH, config.rows, config.columns // 2) if config.stores_boxes else None
    _launch(
        _down, (_box(h_RI, config.rows, config.block), h_short, w2, weights.b2_EH, y_RH, y_box), found, config, hidden,
        programs, pdl, {"H": hidden, "I": inter},
    )  # fmt: skip


def _box(matrix: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(matrix, [rows, columns])


def _launch(
    kernel: Any,
    operands: tuple[Any, ...],
    found: ExpertMap,
    config: GroupedConfig,
    columns: int,
    programs: int,
    pdl: bool,
    meta: dict[str, Any],
) -> None:
    if config.mixed and (config.persistent or config.rows != 2 * SHORT):
        raise ValueError(f"asked for {config}; a mixed kernel needs rows={2 * SHORT} and persistent=False")
    tiles = found.max_tiles * triton.cdiv(columns, config.columns)
    cut = {
        "BM": config.rows, "BN": config.columns, "BK": config.block, "STAGES": config.stages, "GROUP": config.group,
        "PERSISTENT": config.persistent, "SHORT": SHORT if config.mixed else 0, "BOXES": config.stores_boxes,
    }  # fmt: skip
    launch(
        kernel, (min(tiles, programs) if config.persistent else tiles,),
        (*operands, found.tile_expert, found.tile_row, found.tile_rows, found.num_tiles, found.max_tiles),
        {**meta, **cut, "PDL": pdl},
        num_warps=config.warps, num_stages=config.stages, pdl=pdl,
    )  # fmt: skip


@triton.jit
def raster(t, tiles, COLUMN_TILES: tl.constexpr, GROUP: tl.constexpr):
    """Row tile and column tile in the `t`-th place: groups of row tiles sweep over the columns one after another."""
    first = t // (GROUP * COLUMN_TILES) * GROUP
    height = tl.minimum(tiles - first, GROUP)
    within = t % (GROUP * COLUMN_TILES)
    return first + within % height, within // height


@triton.jit
def read(m, tile_expert, tile_row, tile_rows):
    return tl.load(tile_expert + m), tl.load(tile_row + m), tl.load(tile_rows + m)


@triton.jit
def halves(tile, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Left and right half of a tile that is `2 * COLUMNS` wide: mere registers, as each thread has both."""
    return tl.split(tl.permute(tl.reshape(tile, [ROWS, 2, COLUMNS]), [0, 2, 1]))


@triton.jit
def store(out, box, tile, row, rows, n0, N: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BOX: tl.constexpr):
    """Store `tile` at `row` and column `n0` of `out`, `N` wide: its first `rows`, or all of them where `BOX`."""
    tile = tile.to(out.dtype.element_ty)
    if BOX:
        box.store([row, n0], tile)
    else:
        m, n = tl.arange(0, ROWS), n0 + tl.arange(0, COLUMNS)
        at = out + row.to(tl.int64) * N + m[:, None] * N + n[None, :]
        tl.store(at, tile, mask=(m < rows)[:, None] & (n < N)[None, :])


@triton.jit
def _up_tile(
    x, fc1, bias, h, h_box, pair_of_row, e, row, rows, n0,
    H: tl.constexpr, I: tl.constexpr, K: tl.constexpr, HALVES: tl.constexpr, KIND: tl.constexpr, ALPHA: tl.constexpr,
    BETA: tl.constexpr, CLAMP: tl.constexpr, AFTER: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, STAGES: tl.constexpr, BOX: tl.constexpr,
):  # fmt: skip
    m, k = tl.arange(0, ROWS), tl.arange(0, BK)
    here = m < rows
    token = tl.load(pair_of_row + row + m, mask=here, other=0) // K
    x_at = x + token.to(tl.int64)[:, None] * H + k[None, :]
    acc = tl.zeros([ROWS, HALVES * BN], tl.float32)
    for k0 in tl.range(0, H, BK, num_stages=STAGES):
        if H % BK == 0:
            a = tl.load(x_at + k0, mask=here[:, None], other=0.0)
        else:
            a = tl.load(x_at + k0, mask=here[:, None] & (k0 + k < H)[None, :], other=0.0)
        w = tl.reshape(fc1.load([e * HALVES, n0, k0]), [HALVES * BN, BK])
        acc = tl.dot(a, w.T, acc)
    if HALVES == 2:
        gate, up = halves(acc, ROWS, BN)
    else:
        gate, up = acc, acc
    if bias is not None:
        n = n0 + tl.arange(0, BN)
        at = bias + e * (HALVES * I) + n
        gate += tl.load(at, mask=n < I, other=0.0).to(tl.float32)[None, :]
        if HALVES == 2:
            up += tl.load(at + I, mask=n < I, other=0.0).to(tl.float32)[None, :]
    store(h, h_box, activate(gate, up, KIND, ALPHA, BETA, CLAMP, AFTER), row, rows, n0, I, ROWS, BN, BOX)


@triton.jit(do_not_specialize=["max_tiles"])
def _up(
    x, fc1, bias, h, h_box, pair_of_row, tile_expert, tile_row, tile_rows, num_tiles, max_tiles,
    H: tl.constexpr, I: tl.constexpr, K: tl.constexpr, HALVES: tl.constexpr, KIND: tl.constexpr, ALPHA: tl.constexpr,
    BETA: tl.constexpr, CLAMP: tl.constexpr, AFTER: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, STAGES: tl.constexpr, GROUP: tl.constexpr, PERSISTENT: tl.constexpr, SHORT: tl.constexpr,
    BOXES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    COLUMN_TILES: tl.constexpr = (I + BN - 1) // BN
    tiles = tl.load(num_tiles)
    if PERSISTENT:
        for t in tl.range(tl.program_id(0), tiles * COLUMN_TILES, tl.num_programs(0), flatten=True):
            m, n = raster(t, tiles, COLUMN_TILES, GROUP)
            e, row, rows = read(m, tile_expert, tile_row, tile_rows)
            _up_tile(
                x, fc1, bias, h, h_box, pair_of_row, e, row, rows, n * BN,
                H, I, K, HALVES, KIND, ALPHA, BETA, CLAMP, AFTER, BM, BN, BK, STAGES, BOXES,
            )  # fmt: skip
    else:
        # The place hangs on no number that is still under way, so all of them arrive at once.
        m, n = raster(tl.program_id(0), max_tiles, COLUMN_TILES, GROUP)
        e, row, rows = read(m, tile_expert, tile_row, tile_rows)
        if m >= tiles:
            return
        if rows > SHORT:
            _up_tile(
                x, fc1, bias, h, h_box, pair_of_row, e, row, rows, n * BN,
                H, I, K, HALVES, KIND, ALPHA, BETA, CLAMP, AFTER, BM, BN, BK, STAGES, BOXES,
            )  # fmt: skip
        elif SHORT > 0:
            _up_tile(
                x, fc1, bias, h, None, pair_of_row, e, row, rows, n * BN,
                H, I, K, HALVES, KIND, ALPHA, BETA, CLAMP, AFTER, SHORT, BN, BK, STAGES, False,
            )  # fmt: skip


@triton.jit
def _down_tile(
    h_box, w2, bias, y, y_box, e, row, rows, n0,
    H: tl.constexpr, I: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
    BOX: tl.constexpr,
):  # fmt: skip
    acc = tl.zeros([ROWS, BN], tl.float32)
    for k0 in tl.range(0, I, BK, num_stages=STAGES):
        w = tl.reshape(w2.load([e, n0, k0]), [BN, BK])
        acc = tl.dot(h_box.load([row, k0]), w.T, acc)
    if bias is not None:
        n = n0 + tl.arange(0, BN)
        acc += tl.load(bias + e * H + n, mask=n < H, other=0.0).to(tl.float32)[None, :]
    # Half a tile at a time passes through half the shared memory, which leaves room for one more stage.
    left, right = halves(acc, ROWS, BN // 2)
    store(y, y_box, left, row, rows, n0, H, ROWS, BN // 2, BOX)
    store(y, y_box, right, row, rows, n0 + BN // 2, H, ROWS, BN // 2, BOX)


@triton.jit(do_not_specialize=["max_tiles"])
def _down(
    h_box, h_short, w2, bias, y, y_box, tile_expert, tile_row, tile_rows, num_tiles, max_tiles,
    H: tl.constexpr, I: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
    GROUP: tl.constexpr, PERSISTENT: tl.constexpr, SHORT: tl.constexpr, BOXES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    COLUMN_TILES: tl.constexpr = (H + BN - 1) // BN
    tiles = tl.load(num_tiles)
    if PERSISTENT:
        for t in tl.range(tl.program_id(0), tiles * COLUMN_TILES, tl.num_programs(0), flatten=True):
            m, n = raster(t, tiles, COLUMN_TILES, GROUP)
            e, row, rows = read(m, tile_expert, tile_row, tile_rows)
            _down_tile(h_box, w2, bias, y, y_box, e, row, rows, n * BN, H, I, BM, BN, BK, STAGES, BOXES)
    else:
        # The place hangs on no number that is still under way, so all of them arrive at once.
        m, n = raster(tl.program_id(0), max_tiles, COLUMN_TILES, GROUP)
        e, row, rows = read(m, tile_expert, tile_row, tile_rows)
        if m >= tiles:
            return
        if rows > SHORT:
            _down_tile(h_box, w2, bias, y, y_box, e, row, rows, n * BN, H, I, BM, BN, BK, STAGES, BOXES)
        elif SHORT > 0:
            _down_tile(h_short, w2, bias, y, None, e, row, rows, n * BN, H, I, SHORT, BN, BK, STAGES, False)
