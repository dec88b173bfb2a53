"""The Gluon kernels for four- and eight-bit weights against float32 on the dequantized weights, on a Hopper GPU;
elsewhere, what they refuse."""

import pytest
import torch

from moe_core.activation import Activation
from moe_core.contract.vocabulary import ActivationType
from moe_core.quantization import Element, Format, ScaleType, dequantized, quantize
from moe_core.quantization.formats import INT8_ROWS, MXFP4, NVFP4
from moe_core.quantization.integer import quantize_with_zero_points
from moe_core.testing.numerics import assert_bitwise_equal, assert_close
from moe_core.weights import ExpertWeights
from moe_plugins.triton_moe.expert_map import ExpertMap, map_experts
from moe_plugins.triton_moe.spread import spread_rows
from moe_plugins.triton_moe.w4_gluon import ALIGN, W4GluonConfig, available, down, up
from moe_plugins.triton_moe.w4_weights import prepare_w4

TOLERANCE = {torch.bfloat16: 6e-3, torch.float16: 1e-3}
"""Weights of int4 and the result are rounded once each."""
PROGRAMS = 5
"""Few, so that each takes many tiles and its ring of stages runs on across them."""
COUNTS = (1, 0, 31, 33, 64, 65, 96, 97, 128, 129, 160, 161, 0, 321, 2, 0)

SWIGLU = Activation(ActivationType.SWIGLU)
SWIGLU_BIAS = Activation(ActivationType.SWIGLU_BIAS, alpha=1.702, beta=1.0, clamp=7.0)
RELU2 = Activation(ActivationType.RELU2)

CONFIGS = {
    "tall": W4GluonConfig(),
    "one height": W4GluonConfig(short=0, stages=2),
    "96 rows": W4GluonConfig(short=96),
    "low, as many stages as fit": W4GluonConfig(rows=128),
    "low, three stages": W4GluonConfig(rows=128, stages=3, group=2, short=64),
}


def _int4(group):
    return Format(Element.INT4, ScaleType.FLOAT, (1, group))


FORMATS = {
    "mxfp4": (MXFP4, False),
    "nvfp4": (NVFP4, False),
    "int4 32": (_int4(32), False),
    "int4 32 with zero points": (_int4(32), True),
    "int4 128": (_int4(128), False),
    "int4 128 with zero points": (_int4(128), True),
    "int8": (INT8_ROWS, False),
}
SIZES = {
    "gated": (torch.bfloat16, 256, 384, SWIGLU, False),
    "gated with bias, ragged blocks": (torch.float16, 320, 208, SWIGLU_BIAS, True),
    "not gated, one step": (torch.bfloat16, 128, 336, RELU2, True),
}


class TestOnAnyMachine:
    def test_words_that_become_e4m3_are_refused(self):
        with pytest.raises(
            ValueError, match=r"found words of fp4_e4m3; needed fp4, int4, int4_zero, int8; try w4_swap"
        ):
            _down(_weights(e4m3=True), W4GluonConfig())

    @pytest.mark.parametrize("rows", [64, 256])
    def test_other_heights_are_refused(self, rows):
        with pytest.raises(ValueError, match=f"rows={rows}.*rows needs to be 128 or 160"):
            _down(_weights(), W4GluonConfig(rows=rows))

    def test_other_short_heights_are_refused(self):
        with pytest.raises(ValueError, match=r"short=16.*short needs to be 0, 32, 64 or 96"):
            _down(_weights(), W4GluonConfig(short=16))


@pytest.mark.gpu
@pytest.mark.skipif(available() is not None, reason=str(available()))
class TestOnHopper:
    @pytest.mark.parametrize("format_", FORMATS.values(), ids=FORMATS)
    @pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
    def test_formats(self, format_, size):
        Case(*format_, *size).check(CONFIGS["tall"])

    @pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
    @pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
    @pytest.mark.parametrize("format_", [MXFP4, INT8_ROWS], ids=["mxfp4", "int8"])
    def test_configs(self, format_, config, size):
        Case(format_, False, *size).check(config)

    def test_again_gives_the_same_bits(self):
        case = Case(MXFP4, False, torch.bfloat16, 256, 384, SWIGLU, False)
        runs = [torch.cat([h for h, _ in case.run(CONFIGS["tall"], programs)]) for programs in (PROGRAMS, 132)]
        assert_bitwise_equal(*runs)

    def test_no_pair_is_here(self):
        config = CONFIGS["tall"]
        weights = _weights(device="cuda")
        ids = torch.full((4, 2), -1, dtype=torch.int32, device="cuda")
        found = map_experts(ids, 0, 1, tile=config.rows, align=ALIGN)
        h = torch.ones(found.max_rows, 256, dtype=torch.bfloat16, device="cuda")
        y = torch.zeros_like(h)
        down(h, found, weights, y, config, programs=PROGRAMS)
        assert not y.any()


class Case:
    """One pair a token; experts without rows have NaN for scales, which must not reach those before them."""

    def __init__(self, format_, zero, dtype, hidden, inter, activation, bias):
        generator = torch.Generator().manual_seed(0)
        self.dtype, self.hidden, self.inter, self.activation = dtype, hidden, inter, activation
        num, gated = len(COUNTS), activation.kind.is_gated

        def matrix(*shape):
            values = torch.randn(shape, generator=generator) * shape[-1] ** -0.5
            quantized = quantize_with_zero_points(values, format_) if zero else quantize(values, format_)
            return quantized.map(lambda part: part.cuda())

        def biases(width):
            return torch.randn(num, width, generator=generator).to(dtype).cuda() if bias else None

        self.plain = ExpertWeights(
            w1_EIH=matrix(num, inter, hidden),
            w2_EHI=matrix(num, hidden, inter),
            w3_EIH=matrix(num, inter, hidden) if gated else None,
            b1_EI=biases(inter),
            b3_EI=biases(inter) if gated else None,
            b2_EH=biases(hidden),
        )
        self.weights = prepare_w4(self.plain, dtype)
        unused = (torch.tensor(COUNTS) == 0).cuda()
        self.weights.fc1.row_scale[unused] = torch.nan
        self.weights.w2.row_scale[unused] = torch.nan
        ids = torch.tensor([e for e, count in enumerate(COUNTS) for _ in range(count)] + [-1, num], dtype=torch.int32)
        self.ids = ids[torch.randperm(len(ids), generator=generator)].view(-1, 1).cuda()
        self.x = torch.randn(len(ids), hidden, generator=generator).to(dtype).cuda()
        self.x[(self.ids[:, 0] < 0) | (self.ids[:, 0] == num)] = torch.nan

    def run(self, config, programs=PROGRAMS):
        """What an expert's rows become in both kernels, expert by expert of those that have any."""
        found = map_experts(self.ids, 0, len(COUNTS), tile=config.rows, align=ALIGN)
        x, h, self.h, y = (self._unset(found, width) for width in (self.hidden, self.inter, self.inter, self.hidden))
        spread_rows(self.x, found.row_of_pair, 1, x)
        up(x, found, self.weights, self.activation, 1, h, config, programs=programs)
        assert not found.turns.any()
        self.h.copy_(torch.randn(self.h.shape, generator=torch.Generator("cuda").manual_seed(0), device="cuda"))
        down(self.h, found, self.weights, y, config, programs=programs)
        offsets = found.offsets.tolist()
        self.rows = [(e, slice(offsets[e], offsets[e] + count)) for e, count in enumerate(COUNTS) if count]
        unused = torch.ones(len(y), dtype=torch.bool)
        for _, rows in self.rows:
            unused[rows.start : rows.start + -(-(rows.stop - rows.start) // ALIGN) * ALIGN] = False
        assert h[unused.cuda()].isnan().all()
        assert y[unused.cuda()].isnan().all()
        self.tokens = x
        return [(h[rows].float(), y[rows].float()) for _, rows in self.rows]

    def check(self, config):
        found = self.run(config)
        for (e, rows), (h, y) in zip(self.rows, found, strict=True):
            assert_close(h, self._neurons(self.tokens[rows].float(), e), TOLERANCE[self.dtype])
            assert_close(y, self._outputs(self.h[rows].float(), e), TOLERANCE[self.dtype])

    def _neurons(self, x, e):
        gate = _project(x, self.plain.w1_EIH, self.plain.b1_EI, e)
        up_ = None if self.plain.w3_EIH is None else _project(x, self.plain.w3_EIH, self.plain.b3_EI, e)
        return self.activation(gate, up_)

    def _outputs(self, h, e):
        return _project(h, self.plain.w2_EHI, self.plain.b2_EH, e)

    def _unset(self, found, width):
        return torch.full((found.max_rows, width), torch.nan, dtype=self.dtype, device="cuda")


def _project(x, matrix, bias, e):
    product = x @ dequantized(matrix[e], torch.float32).T
    return product if bias is None else product + bias[e].float()


def _weights(device="cpu", *, e4m3=False):
    """One expert, H = I = 256."""
    matrices = [quantize(torch.ones(1, 256, 256, device=device), MXFP4) for _ in range(3)]
    return prepare_w4(ExpertWeights(*matrices), torch.bfloat16, e4m3=e4m3)


def _down(weights, config):
    found = ExpertMap(*(torch.zeros(1, dtype=torch.int32) for _ in ExpertMap._fields))
    h = torch.empty(64, 256, dtype=torch.bfloat16)
    down(h, found, weights, torch.empty_like(h), config, programs=PROGRAMS)
