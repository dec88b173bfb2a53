"""A quantized matrix behaves as the one that it stands for: shape, experts, shares; and says what does not fit."""

from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_core.contract.vocabulary import QuantAlgo
from moe_core.quantization import Element, QuantizedTensor, dequantized, plain, quantize, weight_format
from moe_core.quantization.formats import FP8, FP8_BLOCKS, INT4_ROWS, MXFP4, NVFP4
from moe_core.testing.numerics import assert_bitwise_equal

FORMATS = sorted({weight_format(quant, None) for quant in QuantAlgo} - {None}, key=str)


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@lru_cache
def ragged(format_):
    """A tensor whose last blocks of rows are smaller, and what it stands for."""
    tensor = quantize(random(2, 132, 256), format_, zero_points=format_.element is Element.INT4)
    return tensor, tensor.dequantize()


@pytest.mark.parametrize("format_", FORMATS, ids=str)
def test_has_the_shape_of_what_it_stands_for(format_):
    tensor = quantize(random(3, 64, 128), format_)
    assert tensor.shape == (3, 64, 128)
    assert len(tensor) == 3
    assert tensor[1].shape == (64, 128)
    assert_bitwise_equal(tensor[1].dequantize(), tensor.dequantize()[1])


@pytest.mark.parametrize("format_", FORMATS, ids=str)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_part_is_the_part_of_what_it_stands_for(format_, data):
    tensor, whole = ragged(format_)
    dim = data.draw(st.integers(0, 2))
    part = tensor
    for _ in range(2):  # a part of a part, too
        size, step = part.shape[dim], format_.element.codes_per_byte if dim == 2 else 1
        start, end = sorted(step * data.draw(st.integers(0, size // step)) for _ in range(2))
        part, whole = part.narrow(dim, start, end - start), whole.narrow(dim, start, end - start)
        assert part.misfits("w", format_, part.shape) == []
        assert_bitwise_equal(part.dequantize(), whole)
        assert_bitwise_equal(part.map(torch.clone).dequantize(), whole)


@pytest.mark.parametrize(
    ("format_", "dim", "start", "length", "message"),
    [
        (NVFP4, 2, 0, 23, "a cut at 23 of 256"),
        (INT4_ROWS, 2, 3, 5, "a cut at 3 of 256 parts two codes that share a byte"),
    ],
)
def test_what_shares_a_byte_is_not_parted(format_, dim, start, length, message):
    tensor = quantize(random(2, 256, 256), format_)
    with pytest.raises(ValueError, match=message):
        tensor.narrow(dim, start, length)


def test_a_share_keeps_the_scales_of_the_blocks_that_it_lies_in():
    tensor = quantize(random(300, 384), FP8_BLOCKS)
    part = tensor.narrow(0, 192, 96).narrow(1, 64, 192)
    assert (part.offset, part.scale.shape) == ((64, 64), (2, 2))
    assert_bitwise_equal(part.scale, tensor.scale[1:3, :2])
    assert part.misfits("w", FP8_BLOCKS, (96, 192)) == []
    assert replace(part, offset=(0, 0)).misfits("w", FP8_BLOCKS, (96, 192)) == ["w.scale: found [2, 2], needed [1, 2]"]


def test_is_rounded_to_another_type_once():
    tensor = quantize(random(32, 64), NVFP4)
    assert_bitwise_equal(tensor.dequantize(torch.bfloat16), tensor.dequantize().to(torch.bfloat16))
    assert_bitwise_equal(dequantized(tensor, torch.float16), tensor.dequantize().to(torch.float16))


def test_a_plain_matrix_stands_for_itself():
    matrix = random(4, 4)
    assert plain(matrix) is matrix
    assert dequantized(matrix, torch.float32) is matrix
    assert_bitwise_equal(dequantized(matrix, torch.bfloat16), matrix.bfloat16())


def test_a_quantized_matrix_is_not_plain():
    with pytest.raises(TypeError, match="found e4m3 with float scales per all x all, needed a matrix that is not"):
        plain(quantize(random(4, 4), FP8))


def test_scales_may_be_of_any_float_type():
    tensor = quantize(random(32, 64), FP8)
    narrow = replace(tensor, scale=tensor.scale.bfloat16())
    assert narrow.misfits("w", FP8, (32, 64)) == []
    assert_bitwise_equal(narrow.dequantize(), tensor.data.float() * tensor.scale.bfloat16().float())


def test_every_misfit_is_told():
    tensor = QuantizedTensor(
        NVFP4,
        data=torch.zeros(2, 8, 32, dtype=torch.int8),
        scale=torch.zeros(2, 8, 2, dtype=torch.uint8),
        zero=torch.zeros(1),
    )
    assert tensor.misfits("w", NVFP4, (2, 8, 64)) == [
        "w.data: found torch.int8, needed torch.uint8",
        "w.scale: found [2, 8, 2], needed [2, 8, 4]",
        "w.scale: found torch.uint8, needed torch.float8_e4m3fn",
        "w.global_scale: found nothing, needed [2, 1, 1]",
        "w.zero: found a tensor, needed nothing",
    ]
    assert tensor.misfits("w", MXFP4, (2, 8, 64)) == [
        "w: found e2m1 with e4m3 scales per 1 x 16, needed e2m1 with ue8m0 scales per 1 x 32"
    ]


def test_integers_are_no_scale():
    tensor = replace(quantize(random(4, 4), FP8), scale=torch.ones(1, 1, dtype=torch.int32))
    assert tensor.misfits("w", FP8, (4, 4)) == ["w.scale: found torch.int32, needed a float type"]
