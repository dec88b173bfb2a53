"""A GPU makes of the same values the same codes, and of the same codes the same values."""

import pytest
import torch

from moe_core.contract.vocabulary import QuantAlgo
from moe_core.quantization import ScaleLayout, quantize, resmoothed, swizzle, unswizzle, weight_format
from moe_core.quantization.formats import FP8_BLOCKS, MXFP8
from moe_core.testing.numerics import assert_bitwise_equal

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
FORMATS = sorted({weight_format(quant) for quant in QuantAlgo} - {None}, key=str)


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("format_", FORMATS, ids=str)
def test_codes_scales_and_values_are_those_of_the_cpu(format_):
    x = random(2, 132, 256)
    x[1, 5:40] *= 1e-30
    here, there = (quantize(t, format_, zero_points=format_.element == "int4") for t in (x, x.cuda()))
    for name, part in here.tensors().items():
        assert_bitwise_equal(there.tensors()[name].cpu(), part)
    assert_bitwise_equal(there.dequantize().cpu(), here.dequantize())


def test_resmoothed_as_on_the_cpu():
    here = quantize(random(130, 200), FP8_BLOCKS)
    there = here.map(torch.Tensor.cuda)
    assert_bitwise_equal(resmoothed(there).dequantize().cpu(), resmoothed(here).dequantize())


@pytest.mark.parametrize("layout", ScaleLayout)
def test_layouts_as_on_the_cpu(layout):
    scale = quantize(random(129, 160), MXFP8).scale
    there = swizzle(scale.cuda(), layout)
    assert_bitwise_equal(there.cpu(), swizzle(scale, layout))
    assert_bitwise_equal(unswizzle(there, layout, 129, 5).cpu(), scale)
