"""MXFP4 weights as e4m3, and the kernels that multiply them by rounded tokens, against float32 on the same values."""

import pytest
import torch
import triton
import triton.language as tl

from moe_core.activation import Activation
from moe_core.contract.vocabulary import ActivationType
from moe_core.quantization import Element, Format, QuantizedTensor, ScaleType, dequantized, quantize
from moe_core.quantization.elements import E2M1_MAGNITUDES, pack
from moe_core.quantization.formats import MXFP4, NVFP4
from moe_core.testing.numerics import assert_bitwise_equal, assert_close
from moe_core.weights import ExpertWeights
from moe_plugins.triton_moe.expert_map import map_experts
from moe_plugins.triton_moe.fp8_weights import Fp8Rows
from moe_plugins.triton_moe.quant_rows import quantize_mapped, quantize_rows
from moe_plugins.triton_moe.w4_e4m3 import STEPS
from moe_plugins.triton_moe.w4_swap_ab import W4SwapConfig, down, up
from moe_plugins.triton_moe.w4_weights import prepare_matrix, prepare_w4, word_format
from moe_plugins.triton_moe.w4_words import dequantize, load_scales, num_word_blocks

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS = 16
TOLERANCE = 1e-3
"""What is compared is rounded to float16, and the tensor cores add products of e4m3 to about 4e-4 of a sum."""
TYPES = [torch.float8_e4m3fn, torch.float16]
GPT_OSS = Activation(ActivationType.SWIGLU_BIAS, alpha=1.702, beta=1.0, clamp=7.0)
SWIGLU = Activation(ActivationType.SWIGLU)


@triton.jit
def _dequantized(words, scales, out, N: tl.constexpr, BLOCKS: tl.constexpr, PLAIN: tl.constexpr):
    n, b = tl.arange(0, N), tl.program_id(0)
    q = tl.load(words + (b * N + n)[:, None] * 16 + tl.arange(0, 16)[None, :])
    s = load_scales(scales + b * N + n, N, n < N, "fp4_e4m3", 32, True)
    tile = dequantize(q, s, N, "fp4_e4m3", 32, out.dtype.element_ty, PLAIN)
    tl.store(out + n[:, None] * (BLOCKS * 128) + b * 128 + tl.arange(0, 128)[None, :], tile)


def unpacked(matrix, dtype=torch.float16, **meta):
    """What the kernels make of a matrix ``[1, N, K]``, times the row scale; and the padding."""
    words = word_format(MXFP4, False, e4m3=True)
    prepared = prepare_matrix(matrix, words, torch.float16)
    columns, blocks = matrix.shape[-1], num_word_blocks(matrix.shape[-1])
    out = torch.full((ROWS, blocks * 128), torch.nan, device=DEVICE).to(dtype)
    meta = {"PLAIN": words.meta()["PLAIN"], **meta}
    _dequantized[(blocks,)](prepared.words, prepared.scales, out, N=ROWS, BLOCKS=blocks, **meta, num_warps=1)
    return out[:, :columns].float() * prepared.row_scale[0, :, None], out[:, columns:].float()


def random_matrix(columns):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, ROWS, columns, generator=generator)
    x *= torch.exp2(torch.randint(-3, 4, (1, ROWS, columns // 32), generator=generator)).repeat_interleave(32, -1)
    x[:, 0] = 0.0
    return quantize(x, MXFP4).map(lambda part: part.to(DEVICE))


def all_codes(exponents):
    """Rows whose groups are all codes twice, times powers of two."""
    codes = pack(torch.arange(16, dtype=torch.uint8).repeat(2 * len(exponents))).expand(1, ROWS, -1)
    scale = torch.tensor([127 + exponent for exponent in exponents], dtype=torch.uint8).expand(1, ROWS, -1)
    scale = scale.contiguous().view(MXFP4.scale.storage)
    return QuantizedTensor(MXFP4, codes.contiguous(), scale).map(lambda part: part.to(DEVICE))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("columns", [256, 160])
def test_values_are_exact(columns, dtype):
    matrix = random_matrix(columns)
    actual, padding = unpacked(matrix, dtype)
    assert_bitwise_equal(actual, matrix.dequantize()[0])
    assert padding.isfinite().all()  # it is multiplied by zeros


@pytest.mark.parametrize("top", [-100, -3, 0, 100])
def test_every_code_at_every_power_of_two_of_a_row(top):
    matrix = all_codes(range(top - STEPS, top + 1))
    actual, _ = unpacked(matrix, torch.float8_e4m3fn)
    assert_bitwise_equal(actual, matrix.dequantize()[0])


def test_groups_too_small_for_their_row_are_rounded():
    steps = [1, 2, 3, 6, 40]
    matrix = all_codes([0, *(-STEPS - below for below in steps)])
    actual, _ = unpacked(matrix)
    kept, *small = actual.split(32, dim=1)
    assert_bitwise_equal(kept, matrix.dequantize()[0, :, :32])
    values = torch.tensor([*E2M1_MAGNITUDES, *(-value for value in E2M1_MAGNITUDES)], device=DEVICE).repeat(2)
    for below, group in zip(steps, small, strict=True):
        # Multiples of a half of the smallest scale, ties to even.
        wanted = (values * 2.0 ** (1 - below)).round() * 0.5 * 2.0**-STEPS
        assert_close(group, wanted.expand(ROWS, -1), 0.0)


def test_a_scale_that_is_not_a_number_spoils_its_row():
    matrix = random_matrix(128)
    matrix.scale.view(torch.uint8)[0, 3, 1] = 255
    actual, _ = unpacked(matrix)
    assert actual.isnan().any(dim=1).tolist() == [row == 3 for row in range(ROWS)]


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [*TYPES, torch.bfloat16], ids=str)
def test_assembly_is_the_plain_form(dtype):
    matrix = random_matrix(384)
    assert_bitwise_equal(unpacked(matrix, dtype, PLAIN=False)[0], unpacked(matrix, dtype, PLAIN=True)[0])


@pytest.mark.parametrize("format_", [NVFP4, Format(Element.INT4, ScaleType.FLOAT, (1, 32))], ids=str)
def test_other_formats_have_no_such_words(format_):
    with pytest.raises(ValueError, match="beside tokens in e4m3 needed e2m1"):
        word_format(format_, False, e4m3=True)


class Layer:
    """Experts, of which the second has no token and the last is somebody else's, and rounded rows."""

    def __init__(self, sizes=(3, 256, 128), activation=SWIGLU, bias=False, counts=(37, 0, 3)):
        generator = torch.Generator().manual_seed(0)
        experts, self.hidden, self.inter = sizes

        def randn(*shape, scale=1.0):
            return (torch.randn(shape, generator=generator) * scale).to(DEVICE)

        def matrix(*shape):
            return quantize(randn(experts, *shape, scale=shape[-1] ** -0.5), MXFP4)

        def vector(width):
            return randn(experts, width).half() if bias else None

        gated, self.activation, self.experts = activation.kind.is_gated, activation, experts
        self.weights = ExpertWeights(
            w1_EIH=matrix(self.inter, self.hidden),
            w2_EHI=matrix(self.hidden, self.inter),
            w3_EIH=matrix(self.inter, self.hidden) if gated else None,
            b1_EI=vector(self.inter),
            b3_EI=vector(self.inter) if gated else None,
            b2_EH=vector(self.hidden),
        )
        self.prepared = prepare_w4(self.weights, torch.float16, e4m3=True)
        slots = [e for e, count in enumerate(counts) for _ in range(count)] + [-1, experts]
        self.ids = torch.tensor(slots, dtype=torch.int32)[torch.randperm(len(slots), generator=generator)]
        self.ids = self.ids[:, None].to(DEVICE)
        self.pairs = [(pair, e) for pair, e in enumerate(self.ids.flatten().tolist()) if 0 <= e < experts]
        self.x = randn(len(slots), self.hidden).half()
        self.h = randn(len(slots), self.inter).half()

    def rounded(self, x, found=None):
        """Rows in e4m3, of tokens or of a map, and what they stand for."""
        rows = Fp8Rows.empty(len(x), x.shape[1], x.device, group=0)
        if found is None:
            quantize_rows(x, rows)
        else:
            quantize_mapped(x, found, rows)
        return rows, rows.data.float() * rows.scales.T

    def up(self, config):
        """h of the pairs, and what it should be."""
        found = map_experts(self.ids, 0, self.experts, tile=config.rows)
        rows, values = self.rounded(self.x)
        h = torch.full((found.max_rows, self.inter), torch.nan, dtype=torch.float16, device=DEVICE)
        up(rows, found, self.prepared, self.activation, 1, h, config)
        return h[self._at(found)].float(), torch.stack([self._neurons(values[pair], e) for pair, e in self.pairs])

    def down(self, config):
        """y of the pairs, and what it should be."""
        found = map_experts(self.ids, 0, self.experts, tile=config.rows)
        h = torch.full((found.max_rows, self.inter), torch.nan, dtype=torch.float16, device=DEVICE)
        h[self._at(found)] = self.h[[pair for pair, _ in self.pairs]]
        rows, values = self.rounded(h, found)
        y = torch.full((found.max_rows, self.hidden), torch.nan, dtype=torch.float16, device=DEVICE)
        down(rows, found, self.prepared, y, config)
        at = self._at(found)
        expected = [
            self._affine(self.weights.w2_EHI, self.weights.b2_EH, values[row], e)
            for row, (_, e) in zip(at, self.pairs, strict=True)
        ]
        return y[at].float(), torch.stack(expected)

    def _at(self, found):
        return found.row_of_pair[[pair for pair, _ in self.pairs]].long()

    def _neurons(self, token, e):
        w = self.weights
        gate = self._affine(w.w1_EIH, w.b1_EI, token, e)[None]
        up = None if w.w3_EIH is None else self._affine(w.w3_EIH, w.b3_EI, token, e)[None]
        return self.activation(gate, up)[0]

    @staticmethod
    def _affine(matrix, bias, x, e):
        y = dequantized(matrix[e], torch.float32) @ x
        return y if bias is None else y + bias[e].float()


LAYERS = {
    "swiglu": {},
    "gpt-oss": {"activation": GPT_OSS, "bias": True},
    "not gated": {"activation": Activation(ActivationType.RELU2), "bias": True},
    "ragged": {"sizes": (3, 160, 208), "activation": GPT_OSS, "bias": True},
}
TILES = {
    "rows 16": W4SwapConfig(16, 64),
    "rows 8": W4SwapConfig(8, 128),
    "rows 32, short 16": W4SwapConfig(32, 128, short=16, group=2),
}


@pytest.mark.parametrize("fields", LAYERS.values(), ids=LAYERS)
def test_layers(fields):
    layer, config = Layer(**fields), W4SwapConfig(16, 128)
    assert_close(*layer.up(config), TOLERANCE)
    assert_close(*layer.down(config), TOLERANCE)


@pytest.mark.parametrize("config", TILES.values(), ids=TILES)
def test_tiles(config):
    layer = Layer()
    assert_close(*layer.up(config), TOLERANCE)
    assert_close(*layer.down(config), TOLERANCE)


def test_rows_have_one_scale():
    layer = Layer()
    found = map_experts(layer.ids, 0, layer.experts, tile=16)
    rows = Fp8Rows.empty(len(layer.x), layer.hidden, layer.x.device)
    with pytest.raises(ValueError, match="found rows with scales of 128 columns, needed one scale for each row"):
        up(rows, found, layer.prepared, SWIGLU, 1, layer.h, W4SwapConfig(16))
