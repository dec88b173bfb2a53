"""Formats by name, and what they need to hold a matrix."""

import pytest
import torch

from moe_core.contract.memory import bits_per_weight
from moe_core.contract.vocabulary import DType, QuantAlgo
from moe_core.quantization import Element, Format, ScaleType, input_format, weight_format
from moe_core.quantization.formats import FP8, FP8_BLOCKS, INT4_GROUPED, MXFP4, MXFP8, NVFP4

QUANTIZED = [quant for quant in QuantAlgo if quant is not QuantAlgo.NONE]


def test_every_algorithm_has_a_format_of_its_weights():
    assert weight_format(QuantAlgo.NONE) is None
    assert [quant for quant in QUANTIZED if weight_format(quant) is None] == []


@pytest.mark.parametrize("quant", QUANTIZED)
def test_codes_and_their_group_scales_take_the_bits_that_memory_counts_with(quant):
    format_ = weight_format(quant)
    parts = format_.parts((256, 256))
    bits = 8 * parts["data"].shape[-1] / 256
    if format_.scale is not ScaleType.FLOAT:
        bits += 8 * parts["scale"].shape[-1] / 256
    elif quant in INT4_GROUPED:
        bits += 16 * parts["scale"].shape[-1] / 256
    assert bits == bits_per_weight(quant, DType.BFLOAT16)


@pytest.mark.parametrize("quant", sorted(INT4_GROUPED))
def test_groups_of_integers_are_as_large_as_the_model_says(quant):
    assert weight_format(quant).block == (1, 128)
    assert weight_format(quant, 32).block == (1, 32)


@pytest.mark.parametrize(
    ("quant", "customary"),
    [(QuantAlgo.NVFP4, 16), (QuantAlgo.W4A8_NVFP4_FP8, 32), (QuantAlgo.MXFP8, 32), (QuantAlgo.FP8_BLOCK_SCALES, 128)],
)
def test_other_groups_are_fixed(quant, customary):
    assert weight_format(quant, customary) == weight_format(quant)
    with pytest.raises(ValueError, match=f"{quant} has groups of {customary}: found quant_group_size 64"):
        weight_format(quant, 64)


def test_weight_only_formats_take_inputs_as_they_are():
    weight_only = {quant for quant in QuantAlgo if input_format(quant) is None}
    assert weight_only == {QuantAlgo.NONE, *(quant for quant in QuantAlgo if "A16" in quant)}


def test_inputs_of_two_formats_of_four_bits():
    assert input_format(QuantAlgo.NVFP4) == weight_format(QuantAlgo.W4A16_NVFP4) == NVFP4
    assert input_format(QuantAlgo.W4A8_MXFP4_MXFP8) == MXFP8
    assert weight_format(QuantAlgo.W4A8_MXFP4_MXFP8) == MXFP4
    assert input_format(QuantAlgo.W4A8_MXFP4_FP8) == FP8


def test_a_format_reads_as_one_line():
    assert str(NVFP4) == "e2m1 with e4m3 scales per 1 x 16"
    assert str(FP8) == "e4m3 with float scales per all x all"


def test_parts_of_ragged_blocks_round_up():
    parts = FP8_BLOCKS.parts((3, 130, 257))
    assert {name: (part.shape, part.dtype) for name, part in parts.items()} == {
        "data": ((3, 130, 257), torch.float8_e4m3fn),
        "scale": ((3, 2, 3), None),
    }


def test_parts_of_every_kind():
    assert list(NVFP4.parts((4, 32))) == ["data", "scale", "global_scale"]
    assert NVFP4.parts((4, 32))["global_scale"].shape == (1, 1)
    zero = Format(Element.INT4, ScaleType.FLOAT, (1, 8)).parts((4, 32))["zero"]
    assert zero == ((4, 4), torch.uint8, True)
