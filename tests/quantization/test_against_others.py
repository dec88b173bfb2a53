"""The same bytes mean the same numbers to torch and to transformers."""

import pytest
import torch

from moe_core.quantization import quantize
from moe_core.quantization.formats import FP8_BLOCKS, MXFP4, MXFP8
from moe_core.testing.numerics import assert_bitwise_equal


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_a_scale_byte_is_a_power_of_two_in_torch():
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e8m0fnu).float()
    assert values[:255].tolist() == [2.0 ** (byte - 127) for byte in range(255)]
    assert values[255].isnan()


@pytest.fixture(scope="module")
def mxfp4():
    reason = "transformers, the other reader of these bytes, is not installed"
    return pytest.importorskip("transformers.integrations.mxfp4", reason=reason)


@pytest.fixture(scope="module")
def fp8():
    reason = "transformers, the other reader of these bytes, is not installed"
    return pytest.importorskip("transformers.integrations.finegrained_fp8", reason=reason)


def test_mxfp4_as_in_gpt_oss(mxfp4):
    ours = quantize(random(2, 8, 96), MXFP4)
    blocks, scales = ours.data.view(2, 8, 3, 16), ours.scale.view(torch.uint8)
    theirs = mxfp4.convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    assert_bitwise_equal(ours.dequantize(), theirs.transpose(1, 2).contiguous())


@pytest.mark.parametrize("format_", [FP8_BLOCKS, MXFP8, MXFP4], ids=str)
def test_blocks_of_float8_and_float4(fp8, format_):
    ours = quantize(random(256, 384), format_)
    data = ours.data.view(torch.int8) if format_ == MXFP4 else ours.data
    scale = ours.scale if format_ == FP8_BLOCKS else ours.scale.view(torch.uint8)
    theirs = fp8.Fp8Dequantize(None)._dequantize_one(data, scale, torch.float32)
    assert_bitwise_equal(ours.dequantize(), theirs)
