"""float8 with float scales: scales by the formula, errors of half a step, ragged blocks, powers of two."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_core.quantization import quantize, resmoothed
from moe_core.quantization.formats import FP8, FP8_BLOCKS, FP8_GROUPS, FP8_ROWS, NVFP4
from moe_core.testing.numerics import assert_bitwise_equal, assert_close

FORMATS = (FP8, FP8_ROWS, FP8_BLOCKS, FP8_GROUPS)
HALF_STEP, HALF_SUBNORMAL = 2**-4, 2**-10


def random(*shape, seed=0, scale=1.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def scales_of(tensor):
    """The scale of each element."""
    rows, columns = tensor.shape[-2:]
    heights, widths = (size if b is None else b for size, b in zip((rows, columns), tensor.format.block, strict=True))
    n, k = torch.arange(rows) // heights, torch.arange(columns) // widths
    return tensor.scale[..., n[:, None], k]


@pytest.mark.parametrize("format_", FORMATS, ids=str)
@settings(max_examples=15, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.floats(1e-8, 1e8), st.integers(0, 99))
def test_the_error_is_half_a_step_of_the_code(format_, rows, columns, magnitude, seed):
    x = random(rows, columns, seed=seed, scale=magnitude)
    quantized = quantize(x, format_)
    assert quantized.misfits("w", format_, x.shape) == []
    # The quotient of the scale is rounded as well.
    bound = torch.maximum(x.abs() * HALF_STEP, scales_of(quantized) * HALF_SUBNORMAL) * (1 + 1e-5)
    assert ((quantized.dequantize() - x).abs() <= bound).all()


@pytest.mark.parametrize("format_", FORMATS, ids=str)
def test_quantizing_what_was_dequantized_gives_the_same_codes(format_):
    once = quantize(random(2, 200, 200), format_)
    again = quantize(once.dequantize(), format_)
    assert_bitwise_equal(again.data, once.data)
    assert_close(again.scale, once.scale, 1e-7)


def test_blocks_are_ragged_at_the_edges():
    x = random(130, 200)
    quantized = quantize(x, FP8_BLOCKS)
    corners = [[x[:128, :128], x[:128, 128:]], [x[128:, :128], x[128:, 128:]]]
    expected = torch.stack([torch.stack([block.abs().max() / 448 for block in row]) for row in corners])
    assert_bitwise_equal(quantized.scale, expected)
    assert quantized.data[129, 199].float() == (x[129, 199] / expected[1, 1]).to(torch.float8_e4m3fn).float()


@pytest.mark.parametrize("exponent", [-20, -1, 0, 1, 90])
def test_a_maximum_of_448_times_a_power_of_two_is_exact(exponent):
    x = torch.tensor([[448.0, -1.0, 2**-9, 0.0]]) * 2.0**exponent
    quantized = quantize(x, FP8_ROWS)
    assert quantized.scale.item() == 2.0**exponent
    assert_bitwise_equal(quantized.dequantize(), x)


@pytest.mark.parametrize("format_", FORMATS, ids=str)
def test_zeros_stay_zeros_beside_others(format_):
    x = torch.zeros(2, 256, 256)
    x[1, 200:, 200:] = 1
    assert_bitwise_equal(quantize(x, format_).dequantize() > 0, x > 0)


def test_a_static_scale_saturates():
    x = torch.tensor([[1.0, 1000.0, -1000.0, 0.3]])
    quantized = quantize(x, FP8, static_scale=torch.tensor([[2.0]]))
    assert quantized.dequantize()[0, :3].tolist() == [1, 896, -896]
    assert quantized.dequantize()[0, 3].item() == pytest.approx(0.3, rel=HALF_STEP)


@pytest.mark.parametrize("format_", [FP8_ROWS, FP8_BLOCKS], ids=str)
def test_only_a_scale_per_matrix_can_be_static(format_):
    with pytest.raises(ValueError, match="has no static scale"):
        quantize(torch.ones(2, 2), format_, static_scale=torch.ones(1, 1))


def test_no_rows_are_legal_inputs():
    for format_ in (FP8, FP8_ROWS, FP8_GROUPS):
        quantized = quantize(torch.zeros(0, 256), format_)
        assert quantized.misfits("w", format_, (0, 256)) == []


def test_a_nan_is_not_lost():
    x = torch.ones(2, 4)
    x[0, 1] = torch.nan
    found = quantize(x, FP8_ROWS).dequantize()
    assert found.isnan().tolist() == [[True] * 4, [False] * 4]


def test_resmoothed_scales_are_powers_of_two_and_stay():
    weights = quantize(random(130, 200), FP8_BLOCKS)
    smooth = resmoothed(weights)
    assert (smooth.scale.float().frexp().mantissa == 0.5).all()
    # The least power of two that does not saturate.
    assert (smooth.scale.float() >= weights.scale * (1 - 1e-6)).all()
    assert (smooth.scale.float() < 2 * weights.scale * (1 + 1e-6)).all()
    assert_close(smooth.dequantize(), weights.dequantize(), HALF_STEP)
    assert_bitwise_equal(resmoothed(smooth).dequantize(), smooth.dequantize())


def test_only_blocks_are_resmoothed():
    with pytest.raises(ValueError, match="only 128 x 128 blocks of e4m3 are resmoothed: found e2m1"):
        resmoothed(quantize(torch.ones(16, 16), NVFP4))
