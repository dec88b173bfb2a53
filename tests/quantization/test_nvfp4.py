"""NVFP4: two levels of scales, by the formulas and at their limits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_core.quantization import quantize
from moe_core.quantization.formats import NVFP4, NVFP4_WIDE
from moe_core.testing.numerics import assert_bitwise_equal

E4M3_SUBNORMAL = 2**-9
MAGNITUDES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def random(*shape, seed=0, scale=1.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def by_the_book(x, encode_scale, width=16):
    """Block by block; codes are values, the nearest in a table."""
    values, scales = torch.zeros_like(x), torch.zeros(len(x), x.shape[1] // width)
    for row in range(len(x)):
        for block in range(scales.shape[1]):
            part = x[row, width * block : width * (block + 1)]
            scale = (encode_scale * part.abs().max() / 6).clamp(max=448).to(torch.float8_e4m3fn).float()
            scales[row, block] = scale
            if scale > 0:
                scaled = part * (1 / (scale / encode_scale))
                nearest = MAGNITUDES[(scaled.abs()[:, None] - MAGNITUDES).abs().argmin(dim=1)]
                values[row, width * block : width * (block + 1)] = nearest * scaled.sign()
    return values, scales


@pytest.mark.parametrize(("format_", "width"), [(NVFP4, 16), (NVFP4_WIDE, 32)])
def test_scales_and_codes_are_those_of_the_formulas(format_, width):
    x = random(5, 96, seed=3)
    quantized = quantize(x, format_)
    assert_bitwise_equal(quantized.global_scale, (x.abs().max() / (448 * 6)).view(1, 1))
    values, scales = by_the_book(x, 1 / quantized.global_scale.item(), width)
    assert_bitwise_equal(quantized.scale.float(), scales)
    spread = scales.repeat_interleave(width, dim=1)
    assert_bitwise_equal(quantized.dequantize().abs(), (values * spread * quantized.global_scale).abs())


def test_every_expert_has_its_own_global_scale():
    x = random(3, 8, 32) * torch.tensor([1.0, 100.0, 1e-6]).view(3, 1, 1)
    quantized = quantize(x, NVFP4)
    for expert in range(3):
        alone = quantize(x[expert], NVFP4)
        assert_bitwise_equal(quantized[expert].data, alone.data)
        assert_bitwise_equal(quantized[expert].dequantize(), alone.dequantize())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.floats(1e-20, 1e20), st.floats(1, 1e6), st.integers(0, 99))
def test_the_error_is_one_scale_and_what_a_subnormal_scale_cuts_off(rows, blocks, magnitude, outlier, seed):
    x = random(rows, 16 * blocks, seed=seed, scale=magnitude)
    x[0, 0] *= outlier
    quantized = quantize(x, NVFP4)
    scale = quantized.scale.float().repeat_interleave(16, dim=1) * quantized.global_scale
    cut_off = 6 * E4M3_SUBNORMAL / 2 * quantized.global_scale
    assert ((quantized.dequantize() - x).abs() <= (scale + cut_off) * (1 + 1e-5)).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.floats(1e-20, 1e20), st.integers(0, 99))
def test_a_second_time_changes_nothing(rows, blocks, magnitude, seed):
    once = quantize(random(rows, 16 * blocks, seed=seed, scale=magnitude), NVFP4)
    again = quantize(once.dequantize(), NVFP4, static_scale=once.global_scale)
    assert_bitwise_equal(again.scale, once.scale)
    assert_bitwise_equal(again.data, once.data)


def test_blocks_of_zeros_and_a_matrix_of_zeros():
    x = torch.zeros(2, 32)
    assert_bitwise_equal(quantize(x, NVFP4).dequantize(), x)
    x[0, :16] = 1
    quantized = quantize(x, NVFP4)
    assert quantized.scale.float().tolist() == [[448, 0], [0, 0]]
    assert_bitwise_equal(quantized.dequantize() != 0, x != 0)


def test_one_huge_outlier_costs_small_blocks_their_scale():
    x = torch.full((1, 32), 1e-3)
    x[0, 0] = 1e4
    found = quantize(x, NVFP4).dequantize()
    assert found[0, 0].item() == pytest.approx(1e4)
    assert found[0, 16:].tolist() == [0.0] * 16


def test_a_static_global_scale_saturates():
    x = torch.full((1, 16), 100.0)
    quantized = quantize(x, NVFP4, static_scale=torch.tensor([[10 / (448 * 6)]]))
    assert quantized.scale.float().item() == 448
    assert quantized.dequantize()[0, 0].item() == pytest.approx(10.0)


@pytest.mark.parametrize("magnitude", [1e-44, 1e-38, 3e38])
def test_the_ends_of_the_float32_range_stay_finite(magnitude):
    x = torch.full((2, 32), magnitude)
    x[1] = 0
    found = quantize(x, NVFP4).dequantize()
    assert found.isfinite().all()
    assert found[1].tolist() == [0.0] * 32
