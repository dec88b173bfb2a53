"""Activations to e4m3 against the quantizer in plain torch."""

import pytest
import torch

from moe_core.quantization import Element, Format, ScaleType, quantize
from moe_core.testing.numerics import assert_bitwise_equal, assert_close
from moe_plugins.triton_moe.expert_map import map_experts
from moe_plugins.triton_moe.fp8_weights import Fp8Rows
from moe_plugins.triton_moe.quant_rows import FEW, copy_pairs, quantize_mapped, quantize_pairs, quantize_rows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = 1e-3
"""Kernels multiply by the reciprocal of a scale, so one code in thousands rounds to the other neighbour."""


def _random(num_rows, width, dtype=torch.float16):
    x = torch.randn(num_rows, width, generator=torch.Generator().manual_seed(0))
    return (x * torch.logspace(-2, 2, num_rows)[:, None]).to(dtype).to(DEVICE)


def _values(rows):
    width = rows.data.shape[1]
    return rows.data.float() * rows.scales.T.repeat_interleave(rows.group or width, 1)[:, :width]


@pytest.mark.parametrize("group", [128, 0], ids=["groups", "rows"])
@pytest.mark.parametrize(("num_rows", "width"), [(1, 128), (3, 144), (5, 1200)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_dynamic(group, num_rows, width, dtype):
    x = _random(num_rows, width, dtype)
    rows = Fp8Rows.empty(num_rows, width, x.device, group=group)
    quantize_rows(x, rows)
    expected = quantize(x, Format(Element.E4M3, ScaleType.FLOAT, (1, group or None)))
    assert_close(rows.scales.T, expected.scale, 1e-6)
    assert_close(_values(rows), expected.dequantize(), TOLERANCE)


def test_many_rows():
    x = _random(FEW + 3, 256)
    rows = Fp8Rows.empty(FEW + 3, 256, x.device)
    quantize_rows(x, rows)
    assert_close(_values(rows), quantize(x, Format(Element.E4M3, ScaleType.FLOAT, (1, 128))).dequantize(), TOLERANCE)


@pytest.mark.parametrize("group", [128, 0], ids=["groups", "rows"])
def test_pairs(group):
    x = _random(3, 144)
    row_of_pair = torch.tensor([4, -1, 0, 2, -1, -1], dtype=torch.int32, device=DEVICE)
    rows = Fp8Rows.empty(5, 144, x.device, group=group)
    rows.data.fill_(torch.nan)
    quantize_pairs(x, row_of_pair, 2, rows)
    tokens = Fp8Rows.empty(3, 144, x.device, group=group)
    quantize_rows(x, tokens)
    assert_bitwise_equal(_values(rows)[[4, 0, 2]], _values(tokens)[[0, 1, 1]])
    assert rows.data.float()[[1, 3]].isnan().all()


@pytest.mark.parametrize("group", [128, 0], ids=["groups", "rows"])
def test_pairs_of_tokens_that_came_quantized(group):
    row_of_pair = torch.tensor([4, -1, 0, 2, -1, -1], dtype=torch.int32, device=DEVICE)
    rows, tokens = (Fp8Rows.empty(num_rows, 144, torch.device(DEVICE), group=group) for num_rows in (5, 3))
    rows.data.fill_(torch.nan)
    quantize_rows(_random(3, 144), tokens)
    copy_pairs(tokens, row_of_pair, 2, rows)
    assert_bitwise_equal(_values(rows)[[4, 0, 2]], _values(tokens)[[0, 1, 1]])
    assert rows.data.float()[[1, 3]].isnan().all()


def test_rows_of_a_map_end_with_its_last_expert():
    ids = torch.tensor([[1, 0], [5, 1], [-1, 5]], dtype=torch.int32, device=DEVICE)
    found = map_experts(ids, 0, 2, tile=8)
    x = _random(found.max_rows, 144)
    rows, tokens = (Fp8Rows.empty(found.max_rows, 144, x.device, group=0) for _ in range(2))
    rows.data.fill_(torch.nan)
    quantize_mapped(x, found, rows)
    quantize_rows(x, tokens)
    assert_bitwise_equal(_values(rows)[:3], _values(tokens)[:3])
    assert rows.data.float()[3:].isnan().all()


def test_static_saturates():
    x = _random(4, 144)
    scale = torch.tensor([0.01], device=DEVICE)
    rows = Fp8Rows.empty_static(4, 144, scale)
    quantize_rows(x, rows)
    assert x.abs().max() > 448 * 0.01
    assert rows.data.float().abs().max() == 448
    assert_close(rows.data.float(), (x.float() / 0.01).clamp(-448, 448).to(torch.float8_e4m3fn).float(), TOLERANCE)


def test_zeros():
    rows = Fp8Rows.empty(2, 128, torch.device(DEVICE))
    quantize_rows(torch.zeros(2, 128, dtype=torch.float16, device=DEVICE), rows)
    assert_bitwise_equal(rows.data.float(), torch.zeros(2, 128, device=DEVICE))
    assert rows.scales.isfinite().all()


@pytest.mark.parametrize("static", [False, True])
def test_nan_stays_in_its_row(static):
    x = _random(3, 128)
    x[1, 5] = torch.nan
    rows = Fp8Rows.empty(3, 128, x.device)
    if static:
        rows = Fp8Rows.empty_static(3, 128, torch.tensor([1.0], device=DEVICE))
    quantize_rows(x, rows)
    if x.is_cuda:  # Triton's interpreter makes a number of it
        assert rows.data.float()[1, 5].isnan()
    assert rows.data.float()[::2].isfinite().all()
