"""Quantized experts, with and without a map, against float32 on the dequantized weights."""

import pytest
import torch

from moe_core.activation import Activation
from moe_core.contract.vocabulary import ActivationType
from moe_core.quantization import Element, Format, ScaleType, dequantized, quantize
from moe_core.quantization.formats import INT8_ROWS, MXFP4, NVFP4
from moe_core.quantization.integer import quantize_with_zero_points
from moe_core.testing.numerics import assert_bitwise_equal, assert_close
from moe_core.weights import ExpertWeights
from moe_plugins.triton_moe.expert_map import map_experts
from moe_plugins.triton_moe.w4_no_sort import W4NoSortConfig, run
from moe_plugins.triton_moe.w4_swap_ab import W4SwapConfig, down, up
from moe_plugins.triton_moe.w4_weights import prepare_w4

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = 1e-3
"""Of float16: weights of int4, h and the result are rounded once each."""
SWIGLU = Activation(ActivationType.SWIGLU)
GPT_OSS = Activation(ActivationType.SWIGLU_BIAS, alpha=1.702, beta=1.0, clamp=7.0)
FORMATS = {
    "mxfp4": (MXFP4, False),
    "nvfp4": (NVFP4, False),
    "int4 32": (Format(Element.INT4, ScaleType.FLOAT, (1, 32)), False),
    "int4 128": (Format(Element.INT4, ScaleType.FLOAT, (1, 128)), False),
    "int4 128 with zero points": (Format(Element.INT4, ScaleType.FLOAT, (1, 128)), True),
    "int8": (INT8_ROWS, False),
}
FEW_PROGRAMS = W4NoSortConfig(up_rows=128, down_columns=64)
TILES = {
    "rows 8": W4SwapConfig(8, 128),
    "rows 16": W4SwapConfig(16, 64),
    "rows 32, short 8": W4SwapConfig(32, 128, short=8, group=2),
}


class Layer:
    """Experts, and tokens that choose some of them; what they should become is computed in float32."""

    def __init__(self, format_, zero=False, sizes=(4, 256, 128), activation=SWIGLU, bias=False, tokens=3, top_k=3):
        generator = torch.Generator().manual_seed(0)

        def randn(*shape, scale=1.0):
            return torch.randn(shape, generator=generator) * scale

        def matrix(*shape):
            values = randn(*shape, scale=shape[-1] ** -0.5)
            quantized = quantize_with_zero_points(values, format_) if zero else quantize(values, format_)
            return quantized.map(lambda part: part.to(DEVICE))

        (experts, hidden, inter), self.activation = sizes, activation
        self.weights = ExpertWeights(
            w1_EIH=matrix(experts, inter, hidden),
            w2_EHI=matrix(experts, hidden, inter),
            w3_EIH=matrix(experts, inter, hidden) if activation.kind.is_gated else None,
            b1_EI=randn(experts, inter).half().to(DEVICE) if bias else None,
            b3_EI=randn(experts, inter).half().to(DEVICE) if bias and activation.kind.is_gated else None,
            b2_EH=randn(experts, hidden).half().to(DEVICE) if bias else None,
        )
        self.prepared = prepare_w4(self.weights, torch.float16)
        self.x = randn(tokens, hidden).half().to(DEVICE)
        self.ids = torch.rand(tokens, experts + 2, generator=generator).argsort(1)[:, :top_k].int().to(DEVICE)
        self.start = 1  # slot 0 and the last are somebody else's
        self.ids[-1] = torch.tensor([-1, 0, experts + 1] * top_k, dtype=torch.int32)[:top_k].to(DEVICE)
        self.x[-1] = torch.nan
        self.scales = torch.rand(tokens, top_k, generator=generator).to(DEVICE)

    def pair(self, token, k):
        """h and y of a pair in float32, or nothing."""
        e = int(self.ids[token, k]) - self.start
        if not 0 <= e < len(self.weights.w1_EIH):
            return None
        x = self.x[token].float()
        halves = []
        for weight, bias in ((self.weights.w1_EIH, self.weights.b1_EI), (self.weights.w3_EIH, self.weights.b3_EI)):
            half = None if weight is None else (dequantized(weight[e], torch.float32) @ x)[None]
            halves.append(half if bias is None or half is None else half + bias[e].float())
        h = self.activation(*halves)[0]
        y = dequantized(self.weights.w2_EHI[e], torch.float32) @ h.half().float()
        return h, y if self.weights.b2_EH is None else y + self.weights.b2_EH[e].float()

    def pairs(self):
        """Pairs that are here."""
        tokens, top_k = self.ids.shape
        return [(t, k) for t in range(tokens) for k in range(top_k) if self.pair(t, k) is not None]

    def expected(self):
        out = torch.zeros(self.x.shape, device=DEVICE)
        for token, k in self.pairs():
            out[token] += self.scales[token, k] * self.pair(token, k)[1]
        return out

    def run(self, config=FEW_PROGRAMS):
        num_pairs, inter = self.ids.numel(), self.prepared.sizes[2]
        h = torch.full((num_pairs, inter), torch.nan, dtype=torch.float16, device=DEVICE)
        out = torch.full_like(self.x, torch.nan)
        run(self.x, self.ids, self.scales, self.prepared, self.activation, self.start, h, out, config)
        return out.float()

    def swapped(self, config):
        """Rows of the pairs after each of the two kernels."""
        num_local, hidden, inter = self.prepared.sizes
        found = map_experts(self.ids, self.start, num_local, tile=config.rows)
        h = torch.full((found.max_rows, inter), torch.nan, dtype=torch.float16, device=DEVICE)
        y = torch.full((found.max_rows, hidden), torch.nan, dtype=torch.float16, device=DEVICE)
        up(self.x, found, self.prepared, self.activation, self.ids.shape[1], h, config)
        down(h, found, self.prepared, y, config)
        rows = [int(found.row_of_pair[token * self.ids.shape[1] + k]) for token, k in self.pairs()]
        return h[rows].float(), y[rows].float()


def assert_swapped_close(layer, config):
    expected = [layer.pair(*pair) for pair in layer.pairs()]
    for actual, wanted in zip(layer.swapped(config), zip(*expected, strict=True), strict=True):
        assert_close(actual, torch.stack(wanted), TOLERANCE)


@pytest.mark.parametrize("name", FORMATS)
def test_formats_without_a_map(name):
    layer = Layer(*FORMATS[name])
    assert_close(layer.run(), layer.expected(), TOLERANCE)


@pytest.mark.parametrize("name", FORMATS)
def test_formats_with_a_map(name):
    assert_swapped_close(Layer(*FORMATS[name]), TILES["rows 8"])


@pytest.mark.parametrize("sizes", [(3, 160, 96), (3, 96, 72)], ids=str)
def test_sizes_that_no_block_divides(sizes):
    """Rows and columns of 72 and 160: the last tile and the last block are ragged, and so is a group of 32."""
    layer = Layer(MXFP4, sizes=sizes, activation=GPT_OSS, bias=True)
    assert_close(layer.run(), layer.expected(), TOLERANCE)
    assert_swapped_close(layer, TILES["rows 8"])


@pytest.mark.parametrize("activation", [GPT_OSS, Activation(ActivationType.RELU2)], ids=lambda a: str(a.kind))
@pytest.mark.parametrize("bias", [False, True])
def test_activations(activation, bias):
    layer = Layer(NVFP4, activation=activation, bias=bias)
    assert_close(layer.run(), layer.expected(), TOLERANCE)
    assert_swapped_close(layer, TILES["rows 8"])


@pytest.mark.parametrize("config", TILES.values(), ids=TILES)
def test_tiles(config):
    """One expert has more rows than a tile, one few, some none."""
    layer = Layer(MXFP4, tokens=46, top_k=1)
    layer.ids[:40, 0], layer.ids[40:45, 0] = 2, 4
    assert_swapped_close(layer, config)


@pytest.mark.parametrize("top_k", [1, 4])
def test_numbers_of_experts_of_a_token(top_k):
    layer = Layer(MXFP4, sizes=(12, 128, 128), top_k=top_k)
    assert_close(layer.run(), layer.expected(), TOLERANCE)


def test_more_than_eight_experts_of_a_token():
    layer = Layer(MXFP4, sizes=(12, 128, 128), tokens=2, top_k=10)
    assert_close(layer.run(), layer.expected(), TOLERANCE)


def test_the_same_bits_every_time():
    layer = Layer(MXFP4)
    assert_bitwise_equal(layer.run(), layer.run())


def test_plain_weights_are_refused():
    plain = ExpertWeights(w1_EIH=torch.zeros(1, 8, 8), w2_EHI=torch.zeros(1, 8, 8))
    with pytest.raises(TypeError, match="not quantized"):
        prepare_w4(plain, torch.float16)


@pytest.mark.parametrize(
    ("name", "config", "needed"),
    [
        ("mxfp4", W4SwapConfig(8, 256), "128 weight rows are the most"),
        ("int8", W4SwapConfig(128, 128), r"of int8, weight_rows \* rows is 8192 at most"),
    ],
)
def test_tiles_whose_results_differ_are_refused(name, config, needed):
    with pytest.raises(ValueError, match=needed):
        Layer(*FORMATS[name]).swapped(config)
