"""Few rows per expert: weights are the wide operand of the tensor cores, tokens the narrow one.

Each tile of weights is read by one program, so the time is that of the weight stream. Tokens are padded to 8, 16, 32
or 64 columns instead of the 64 rows that the tensor cores want of the other operand.
"""

# Kernels are functions of tiles, for which Python has no types; their names are those of the formulas.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202, E741

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from moe_core.activation import Activation
from moe_core.fused_weights import FusedExpertWeights
from moe_plugins.triton_moe.activation import activate, activation_meta
from moe_plugins.triton_moe.expert_map import ExpertMap
from moe_plugins.triton_moe.launch import launch


class SwapConfig(NamedTuple):
    """Tiles of one of the two kernels."""

    rows: int = 16
    """Tokens of a tile: the map's `tile`."""
    columns: int = 64
    """Weight rows of a program; gate and up rows of each."""
    block: int = 128
    """Of the inner dimension, per step."""
    stages: int = 3
    warps: int = 4


def up(
    x_TH: torch.Tensor,
    found: ExpertMap,
    weights: FusedExpertWeights,
    activation: Activation,
    top_k: int,
    h_RI: torch.Tensor,
    config: SwapConfig,
    *,
    pdl: bool = False,
) -> None:
    """FC1 and the activation of every row of the map, into `h_RI`."""
    _, hidden, inter = weights.w2_EHI.shape
    launch(
        _up, (found.max_tiles * triton.cdiv(inter, config.columns),),
        (
            x_TH, weights.fc1_EGH, weights.fc1_bias_EG, h_RI,
            found.pair_of_row, found.tile_expert, found.tile_row, found.tile_rows, found.num_tiles,
        ),
        {
            "H": hidden, "I": inter, "K": top_k, "T": config.rows, "N": config.columns, "BLOCK": config.block,
            "STAGES": config.stages, "GATED": weights.gated, "PDL": pdl, **activation_meta(activation),
        },
        num_warps=config.warps, num_stages=config.stages, pdl=pdl,
    )  # fmt: skip


def down(
    h_RI: torch.Tensor,
    found: ExpertMap,
    weights: FusedExpertWeights,
    y_RH: torch.Tensor,
    config: SwapConfig,
    *,
    pdl: bool = False,
) -> None:
    """FC2 of every row of the map, into `y_RH`; not weighed."""
    _, hidden, inter = weights.w2_EHI.shape
    launch(
        _down, (found.max_tiles * triton.cdiv(hidden, config.columns),),
        (
            h_RI, weights.w2_EHI, weights.b2_EH, y_RH,
            found.tile_expert, found.tile_row, found.tile_rows, found.num_tiles,
        ),
        {
            "H": hidden, "I": inter, "T": config.rows, "N": config.columns, "BLOCK": config.block,
            "STAGES": config.stages, "PDL": pdl,
        },
        num_warps=config.warps, num_stages=config.stages, pdl=pdl,
    )  # fmt: skip


@triton.jit
def weight_tile(w, at_N, is_row_N, k, K: tl.constexpr, BLOCK: tl.constexpr, ALL_ROWS: tl.constexpr):
    """Tile ``[N, BLOCK]`` of weight rows that start at `at_N`, from column `k` on."""
    kk = k + tl.arange(0, BLOCK)
    pointers = w + at_N[:, None] + kk[None, :]
    if ALL_ROWS and K % BLOCK == 0:
        tile = tl.load(pointers, eviction_policy="evict_first")
    else:
        tile = tl.load(pointers, mask=is_row_N[:, None] & (kk < K)[None, :], other=0.0, eviction_policy="evict_first")
    return tile


@triton.jit
def token_tile(x, at_T, is_token_T, k, K: tl.constexpr, BLOCK: tl.constexpr):
    """Tile ``[BLOCK, T]`` of rows that start at `at_T`, from column `k` on, transposed."""
    kk = k + tl.arange(0, BLOCK)
    return tl.load(x + at_T[None, :] + kk[:, None], mask=is_token_T[None, :] & (kk < K)[:, None], other=0.0)


@triton.jit
def _up(
    x, fc1, b1, h, pair_of_row, tile_expert, tile_row, tile_rows, num_tiles,
    H: tl.constexpr, I: tl.constexpr, K: tl.constexpr, T: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr, GATED: tl.constexpr, PDL: tl.constexpr,
    KIND: tl.constexpr, ALPHA: tl.constexpr, BETA: tl.constexpr, CLAMP: tl.constexpr, AFTER: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    # Tile by tile: a second tile of an expert finds its weights in L2.
    NUM_COLUMNS: tl.constexpr = (I + N - 1) // N
    tile = tl.program_id(0) // NUM_COLUMNS
    if tile < tl.load(num_tiles):
        G: tl.constexpr = 2 * I if GATED else I
        e = tl.load(tile_expert + tile)
        t = tl.arange(0, T)
        is_token = t < tl.load(tile_rows + tile)
        row = tl.load(tile_row + tile) + t
        at_x = (tl.load(pair_of_row + row, mask=is_token, other=0) // K).to(tl.int64) * H
        n = tl.program_id(0) % NUM_COLUMNS * N + tl.arange(0, N)
        is_row = n < I
        at = e.to(tl.int64) * (G * H) + n * H
        gate, up_ = tl.zeros([N, T], tl.float32), tl.zeros([N, T], tl.float32)
        for k in tl.range(0, H, BLOCK, num_stages=STAGES):
            tokens = token_tile(x, at_x, is_token, k, H, BLOCK)
            gate = tl.dot(weight_tile(fc1, at, is_row, k, H, BLOCK, I % N == 0), tokens, gate)
            if GATED:
                up_ = tl.dot(weight_tile(fc1, at + I * H, is_row, k, H, BLOCK, I % N == 0), tokens, up_)
        if b1 is not None:
            gate += tl.load(b1 + e * G + n, mask=is_row, other=0.0).to(tl.float32)[:, None]
            if GATED:
                up_ += tl.load(b1 + e * G + I + n, mask=is_row, other=0.0).to(tl.float32)[:, None]
        out = activate(gate, up_, KIND, ALPHA, BETA, CLAMP, AFTER).to(h.dtype.element_ty)
        tl.store(h + row.to(tl.int64)[:, None] * I + n[None, :], out.T, mask=is_token[:, None] & is_row[None, :])


@triton.jit
def _down(
    h, w2, b2, y, tile_expert, tile_row, tile_rows, num_tiles,
    H: tl.constexpr, I: tl.constexpr, T: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    NUM_COLUMNS: tl.constexpr = (H + N - 1) // N
    tile = tl.program_id(0) // NUM_COLUMNS
    if tile < tl.load(num_tiles):
        e = tl.load(tile_expert + tile)
        t = tl.arange(0, T)
        is_token = t < tl.load(tile_rows + tile)
        row = (tl.load(tile_row + tile) + t).to(tl.int64)
        n = tl.program_id(0) % NUM_COLUMNS * N + tl.arange(0, N)
        is_row = n < H
        at = e.to(tl.int64) * (H * I) + n * I
        acc = tl.zeros([N, T], tl.float32)
        for k in tl.range(0, I, BLOCK, num_stages=STAGES):
            tokens = token_tile(h, row * I, is_token, k, I, BLOCK)
            acc = tl.dot(weight_tile(w2, at, is_row, k, I, BLOCK, H % N == 0), tokens, acc)
        if b2 is not None:
            acc += tl.load(b2 + e * H + n, mask=is_row, other=0.0).to(tl.float32)[:, None]
        out = acc.to(y.dtype.element_ty).T
        tl.store(y + row[:, None] * H + n[None, :], out, mask=is_token[:, None] & is_row[None, :])
