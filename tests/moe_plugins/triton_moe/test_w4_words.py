"""Words and scales: unpacked they are the weights, in every format."""

import dataclasses

import pytest
import torch
import triton
import triton.language as tl

from moe_core.quantization import Element, Format, ScaleType, quantize
from moe_core.quantization.formats import INT4_ROWS, INT8_ROWS, MXFP4, NVFP4, NVFP4_WIDE
from moe_core.quantization.integer import quantize_with_zero_points
from moe_core.testing.numerics import assert_bitwise_equal, assert_close
from moe_plugins.triton_moe.w4_weights import prepare_matrix, word_format
from moe_plugins.triton_moe.w4_words import code_words, dequantize, load_scales, num_word_blocks, scale_words

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS = 16


def int4(group):
    return Format(Element.INT4, ScaleType.FLOAT, (1, group))


FORMATS = {
    "mxfp4": MXFP4, "nvfp4": NVFP4, "nvfp4 wide": NVFP4_WIDE, "int4 rows": INT4_ROWS, "int8": INT8_ROWS,
    **{f"int4 {group}": int4(group) for group in (32, 64, 128, 256)},
}  # fmt: skip
ROUNDED = {torch.float16: 6e-4, torch.bfloat16: 5e-3}
"""What rounding scales of int4, and products with them, may cost; all else is exact."""
WITH_ZERO = {f"int4 {group}": int4(group) for group in (32, 64, 128)}


def on_a_gpu(test):
    """Elsewhere there is no assembly."""
    return pytest.mark.gpu(pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")(test))


@triton.jit
def _dequantized(
    words, scales, out, N: tl.constexpr, BLOCKS: tl.constexpr, WORDS: tl.constexpr, SCALES: tl.constexpr,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    n, b = tl.arange(0, N), tl.program_id(0)
    q = tl.load(words + (b * N + n)[:, None] * WORDS + tl.arange(0, WORDS)[None, :])
    s = load_scales(scales + b * SCALES * N + n, N, n < N, FORMAT, GROUP, True)
    tile = dequantize(q, s, N, FORMAT, GROUP, out.dtype.element_ty, PLAIN)
    tl.store(out + n[:, None] * (BLOCKS * 128) + b * 128 + tl.arange(0, 128)[None, :], tile)


def unpacked(matrix, words, dtype, **meta):
    """What the kernels make of a matrix ``[1, N, K]``, times the row scale; and the padding."""
    prepared = prepare_matrix(matrix, words, dtype)
    columns, blocks = matrix.shape[-1], num_word_blocks(matrix.shape[-1])
    out = torch.full((ROWS, blocks * 128), torch.nan, dtype=dtype, device=DEVICE)
    sizes = {"N": ROWS, "BLOCKS": blocks, "WORDS": code_words(words.kind), "SCALES": scale_words(*words)}
    _dequantized[(blocks,)](prepared.words, prepared.scales, out, **sizes, **(words.meta() | meta), num_warps=1)
    return out[:, :columns].float() * prepared.row_scale[0, :, None], out[:, columns:]


def matrix_of(format_, columns, zero=False):
    generator = torch.Generator().manual_seed(0)
    size = torch.exp2(torch.randint(-4, 5, (1, ROWS, 1), generator=generator).float())
    x = torch.randn(1, ROWS, columns, generator=generator) * size
    x[:, 0] = 0.0
    quantized = quantize_with_zero_points(x, format_) if zero else quantize(x, format_)
    return quantized.map(lambda part: part.to(DEVICE))


@pytest.mark.parametrize("dtype", ROUNDED, ids=str)
@pytest.mark.parametrize("columns", [256, 160])
@pytest.mark.parametrize("format_", FORMATS.values(), ids=FORMATS)
def test_values(format_, columns, dtype):
    matrix = matrix_of(format_, columns)
    actual, padding = unpacked(matrix, word_format(format_, False), dtype)
    assert_close(actual, matrix.dequantize()[0], ROUNDED[dtype] if format_.element is Element.INT4 else 0.0)
    assert padding.isfinite().all()  # it is multiplied by zeros


@pytest.mark.parametrize("dtype", ROUNDED, ids=str)
@pytest.mark.parametrize("columns", [256, 160])
@pytest.mark.parametrize("format_", WITH_ZERO.values(), ids=WITH_ZERO)
def test_zero_points(format_, columns, dtype):
    matrix = matrix_of(format_, columns, zero=True)
    actual, padding = unpacked(matrix, word_format(format_, True), dtype)
    assert_close(actual, matrix.dequantize()[0], ROUNDED[dtype])
    assert padding.isfinite().all()  # it is multiplied by zeros


@pytest.mark.parametrize("dtype", ROUNDED, ids=str)
@pytest.mark.parametrize("form", ["int4", "int4 with zero points", "nvfp4"])
def test_scales_may_be_negative(form, dtype):
    """Some quantizers write them so. Here they are also the largest of their rows, and in one row all."""
    format_, zero = NVFP4 if form == "nvfp4" else int4(32), form == "int4 with zero points"
    matrix = matrix_of(format_, 256, zero=zero)
    scale = matrix.scale.float()
    scale[..., 1] *= -16
    scale[:, 3] = -scale[:, 3].abs()
    matrix = dataclasses.replace(matrix, scale=scale.to(matrix.scale.dtype))
    actual, _ = unpacked(matrix, word_format(format_, zero), dtype)
    assert_close(actual, matrix.dequantize()[0], 0.0 if form == "nvfp4" else ROUNDED[dtype])


@pytest.mark.parametrize("byte", [0, 1, 127, 253, 254])
def test_all_scales_of_microscaling(byte):
    """Of a row whose groups differ by one step, at both ends of the range."""
    matrix = matrix_of(MXFP4, 128)
    scale = torch.tensor([byte, max(byte - 1, 0)], dtype=torch.uint8).repeat(1, ROWS, 2).to(DEVICE)
    matrix.scale.view(torch.uint8).copy_(scale)
    actual, _ = unpacked(matrix, word_format(MXFP4, False), torch.float16)
    assert_bitwise_equal(actual, matrix.dequantize()[0])


def test_all_codes_of_all_scales():
    """Every e4m3 scale, also the subnormal ones and zero, with every code."""
    scale = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn)
    matrix = quantize(torch.ones(1, ROWS, 128), NVFP4)
    scale = torch.cat([scale, scale[:1]]).view(1, ROWS, 8)
    codes = torch.tensor([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE], dtype=torch.uint8)
    matrix = type(matrix)(NVFP4, codes.repeat(1, ROWS, 8), scale, torch.full((1, 1, 1), 0.3)).map(
        lambda part: part.to(DEVICE)
    )
    actual, _ = unpacked(matrix, word_format(NVFP4, False), torch.float16)
    assert_close(actual, matrix.dequantize()[0], 1e-7)


def test_a_scale_that_is_not_a_number_spoils_its_row():
    matrix = matrix_of(MXFP4, 128)
    matrix.scale.view(torch.uint8)[0, 3, 1] = 255
    actual, _ = unpacked(matrix, word_format(MXFP4, False), torch.float16)
    assert actual.isnan().any(dim=1).tolist() == [row == 3 for row in range(ROWS)]


@pytest.mark.parametrize("format_", [Format(Element.E4M3, ScaleType.FLOAT, (None, None)), int4(48)], ids=str)
def test_what_has_no_words_is_refused(format_):
    with pytest.raises(ValueError, match="needed e2m1 in groups of 16 or 32"):
        word_format(format_, False)


@on_a_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("format_", FORMATS.values(), ids=FORMATS)
def test_assembly_is_the_plain_form(format_, dtype):
    matrix, words = matrix_of(format_, 256), word_format(format_, False)
    assembled, _ = unpacked(matrix, words, dtype)
    plain, _ = unpacked(matrix, words, dtype, PLAIN=True)
    assert_bitwise_equal(assembled, plain)


@on_a_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("format_", WITH_ZERO.values(), ids=WITH_ZERO)
def test_assembly_is_the_plain_form_with_zero_points(format_, dtype):
    matrix, words = matrix_of(format_, 256, zero=True), word_format(format_, True)
    assembled, _ = unpacked(matrix, words, dtype)
    plain, _ = unpacked(matrix, words, dtype, PLAIN=True)
    assert_bitwise_equal(assembled, plain)
