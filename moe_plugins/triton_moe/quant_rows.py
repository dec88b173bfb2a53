"""Activations to e4m3, once per token and before experts share them."""

# Kernels are functions of tiles, for which Python has no types; their names are those of the formulas.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from moe_plugins.triton_moe.expert_map import ExpertMap
from moe_plugins.triton_moe.fp8_weights import BLOCK, Fp8Rows
from moe_plugins.triton_moe.launch import launch

LARGEST: Final = tl.constexpr(448.0)
"""Of e4m3."""
LEAST: Final = tl.constexpr(1e-10)
"""Smaller magnitudes count as this: a scale can be divided by."""
INTERPRETED: Final = tl.constexpr(triton.knobs.runtime.interpret)
"""Triton's interpreter forgets the carry when a mantissa rounds up to the next power of two."""
GROUPS: Final = 8
"""Groups of a row per program."""
TOKENS: Final = 8
"""Tokens per program where there are many: so many scales are stored together."""
FEW: Final = 512
"""Tokens up to which each has programs of its own."""


def quantize_rows(x_NK: torch.Tensor, rows: Fp8Rows, *, pdl: bool = False) -> None:
    """Fill `rows` from `x_NK` of any float type, K a multiple of 16, by group of 128 columns, by row or statically."""
    _launch(x_NK, None, 1, None, rows, pdl)


def quantize_mapped(h_RK: torch.Tensor, found: ExpertMap, rows: Fp8Rows, *, pdl: bool = False) -> None:
    """As :func:`quantize_rows`, of rows of the map `found`; those past its last expert stay undefined."""
    _launch(h_RK, None, 1, found, rows, pdl)


def quantize_pairs(
    x_TH: torch.Tensor, row_of_pair: torch.Tensor, top_k: int, rows: Fp8Rows, *, pdl: bool = False
) -> None:
    """As :func:`quantize_rows`, with a copy of each token in the row of each of its pairs, -1 for none.

    That costs bytes, and spares the kernel that reads `rows` the gathering. Other rows stay undefined.
    """
    _launch(x_TH, row_of_pair, top_k, None, rows, pdl)


def copy_pairs(x: Fp8Rows, row_of_pair: torch.Tensor, top_k: int, rows: Fp8Rows, *, pdl: bool = False) -> None:
    """As :func:`quantize_pairs`, of tokens that came quantized; both have scales by group of as many columns."""
    num_tokens, width = x.data.shape
    num_groups = len(rows.scales)
    launch(
        _copy, (num_tokens,),
        (x.data, x.scales, row_of_pair, rows.data, rows.scales, num_tokens, len(rows.data)),
        {
            "K": width, "WIDTH": triton.next_power_of_2(width), "GROUPS": num_groups,
            "PLACES": triton.next_power_of_2(num_groups), "COPIES": top_k, "PDL": pdl,
        },
        num_warps=4, pdl=pdl,
    )  # fmt: skip


def _launch(
    x: torch.Tensor,
    row_of_pair: torch.Tensor | None,
    copies: int,
    found: ExpertMap | None,
    rows: Fp8Rows,
    pdl: bool,
) -> None:
    num_tokens, width = x.shape
    group = rows.group or (BLOCK if rows.static else triton.next_power_of_2(width))
    groups = GROUPS if group == BLOCK else 1
    tokens = TOKENS if num_tokens > FEW and group == BLOCK else 1
    offsets, counts = (None, None) if found is None else (found.offsets, found.counts)
    launch(
        _quantize, (triton.cdiv(num_tokens, tokens), triton.cdiv(width, group * groups)),
        (x, row_of_pair, offsets, counts, rows.data, rows.scales, num_tokens, len(rows.data)),
        {
            "L": 0 if counts is None else len(counts), "K": width, "GROUP": group, "GROUPS": groups,
            "TOKENS": tokens, "COPIES": copies, "STATIC": rows.static, "PDL": pdl,
        },
        num_warps=8 if tokens > 1 or group > 4096 else 4, pdl=pdl,
    )  # fmt: skip


@triton.jit
def scale_of(x, AXIS: tl.constexpr):
    """The scale that maps the largest magnitude along `AXIS` to that of e4m3."""
    return tl.maximum(tl.max(tl.abs(x), AXIS), LEAST) / LARGEST


@triton.jit
def to_e4m3(x, scale):
    """``x / scale``, saturated."""
    # One division per scale. NaN stays NaN.
    codes = tl.clamp(x * (1.0 / scale), -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    if INTERPRETED:
        codes = _nearest(codes)
    return codes.to(tl.float8e4nv)


@triton.jit
def _nearest(x):
    """The value of e4m3 nearest to `x`, in float32."""
    normal = tl.maximum(tl.abs(x), 2.0**-6)
    step = (normal.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True) * 0.125
    return ((x / step + 12582912.0) - 12582912.0) * step  # 1.5 * 2 ** 23: float32 is whole from there on


@triton.jit(do_not_specialize=["num_tokens", "num_rows"])
def _quantize(
    x, row_of_pair, offsets, counts, codes, scales, num_tokens, num_rows,
    L: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, TOKENS: tl.constexpr,
    COPIES: tl.constexpr, STATIC: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    t = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    g = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    k = g[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    end = num_tokens
    if counts is not None:
        end = tl.load(offsets + (L - 1)) + tl.load(counts + (L - 1))
        if tl.program_id(0) * TOKENS >= end:
            return
    is_token = t < end
    here = is_token[:, None, None] & (k < K)[None, :, :]
    values = tl.load(x + t.to(tl.int64)[:, None, None] * K + k[None, :, :], mask=here, other=0.0).to(tl.float32)
    if STATIC:
        found = to_e4m3(values, tl.load(scales))
    else:
        scale = scale_of(values, 2)
        found = to_e4m3(values, scale[:, :, None])
    for copy in tl.static_range(COPIES):
        row = t if row_of_pair is None else tl.load(row_of_pair + t * COPIES + copy, mask=is_token, other=-1)
        kept = is_token & (row >= 0)
        row = row.to(tl.int64)
        tl.store(codes + row[:, None, None] * K + k[None, :, :], found, mask=kept[:, None, None] & (k < K)[None, :, :])
        if not STATIC:
            at = scales + g.to(tl.int64)[None, :] * num_rows + row[:, None]
            tl.store(at, scale, mask=kept[:, None] & (g * GROUP < K)[None, :])


@triton.jit(do_not_specialize=["num_tokens", "num_rows"])
def _copy(
    x, x_scales, row_of_pair, codes, scales, num_tokens, num_rows,
    K: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr, PLACES: tl.constexpr, COPIES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    t = tl.program_id(0).to(tl.int64)
    k, g = tl.arange(0, WIDTH), tl.arange(0, PLACES)
    values = tl.load(x + t * K + k, mask=k < K)
    scale = tl.load(x_scales + g.to(tl.int64) * num_tokens + t, mask=g < GROUPS)
    for copy in tl.static_range(COPIES):
        row = tl.load(row_of_pair + t * COPIES + copy).to(tl.int64)
        tl.store(codes + row * K + k, values, mask=(k < K) & (row >= 0))
        tl.store(scales + g.to(tl.int64) * num_rows + row, scale, mask=(g < GROUPS) & (row >= 0))
