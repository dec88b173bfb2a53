"""The Gluon kernels for fp8 against float32 on the same codes, on a Hopper GPU; elsewhere, what they
refuse."""

import pytest
import torch

from moe_core.activation import Activation
from moe_core.contract.vocabulary import ActivationType
from moe_core.quantization import Element, Format, ScaleType, quantize
from moe_core.testing.numerics import assert_bitwise_equal, assert_close
from moe_plugins.triton_moe.expert_map import ExpertMap, map_experts
from moe_plugins.triton_moe.fp8_gluon import ALIGN, Fp8GluonConfig, available, down, up
from moe_plugins.triton_moe.fp8_weights import Fp8Rows, Fp8Weights, in_blocks
from moe_plugins.triton_moe.quant_rows import quantize_pairs, quantize_rows

TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 1e-3}
"""One rounding, and sums of e4m3 products to about 4e-4 of a sum."""
CODES_TOLERANCE = 1e-2
"""Those sums put a code in a hundred on the other side of a rounding boundary, a twelfth of its value away."""
PARKED_TOLERANCE = 2e-2
"""Gate is parked in bfloat16, off by a thousandth: two codes in a hundred more are on the other side."""
PROGRAMS = 5
"""Few, so that each takes many tiles and its ring of stages runs on across them."""
COUNTS = (1, 0, 63, 64, 65, 128, 129, 192, 0, 193, 449, 2, 0)
NAN = 0x7F
"""The code of e4m3."""

SWIGLU = Activation(ActivationType.SWIGLU)
SWIGLU_BIAS = Activation(ActivationType.SWIGLU_BIAS, alpha=1.702, beta=1.0, clamp=7.0)
RELU2 = Activation(ActivationType.RELU2)

CONFIGS = {
    "as many stages as fit": Fp8GluonConfig(),
    "three stages": Fp8GluonConfig(stages=3, group=2),
    "192 rows": Fp8GluonConfig(rows=192),
}
FORMS = ("blocks", "tensors", "static", "rows")
"""Of scales: blocks of weights, and groups of columns of rows; whole matrices, and rows; the same, and one that was
calibrated; rows of both."""
STATIC = 0.05
"""The calibrated scale."""
SIZES = {
    "gated": (torch.bfloat16, 512, 640, SWIGLU, False),
    "gated with bias, ragged blocks": (torch.float16, 400, 208, SWIGLU_BIAS, True),
    "not gated, one step": (torch.bfloat16, 128, 1040, RELU2, True),
}


class TestOnAnyMachine:
    def test_other_groups_of_columns_are_refused(self):
        with pytest.raises(
            ValueError, match=r"asked for scales of 64 columns of rows; .* need those of all columns or 128"
        ):
            _down(_weights(), Fp8Rows.empty(64, 256, torch.device("cpu"), group=64))

    @pytest.mark.parametrize("rows", [64, 256])
    def test_other_heights_are_refused(self, rows):
        with pytest.raises(ValueError, match=f"rows={rows}.*rows needs to be 128 or 192"):
            _down(_weights(), Fp8Rows.empty(64, 256, torch.device("cpu")), Fp8GluonConfig(rows=rows))


@pytest.mark.gpu
@pytest.mark.skipif(available() is not None, reason=str(available()))
class TestOnHopper:
    @pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
    @pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
    @pytest.mark.parametrize("form", FORMS)
    def test_up(self, config, size, form):
        case = Case(*size, config=config, form=form)
        x = case.rows(case.hidden, 128 if form == "blocks" else 0)
        quantize_pairs(case.x, case.found.row_of_pair, 1, x)
        h = case.rows(case.inter)
        up(x, case.found, case.weights, case.activation, 1, h, config, programs=PROGRAMS)
        # All rows together: in a single one, a code that differs can be the one that outweighs the others.
        expected = torch.cat([case.neurons(_values(x)[rows], e) for e, rows in case.filled()])
        actual = torch.cat([_values(h)[rows] for _, rows in case.filled()])
        assert_close(actual, _rounded(expected, h), PARKED_TOLERANCE if config.rows > 128 else CODES_TOLERANCE)

    @pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
    @pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
    @pytest.mark.parametrize("form", FORMS)
    def test_down(self, config, size, form):
        case = Case(*size, config=config, form=form)
        h = case.rows(case.inter)
        quantize_rows(torch.randn(h.data.shape, device="cuda"), h)
        y = torch.full((case.found.max_rows, case.hidden), torch.nan, dtype=case.dtype, device="cuda")
        down(h, case.found, case.weights, y, config, programs=PROGRAMS)
        assert not case.found.turns.any()
        for e, rows in case.filled():
            assert_close(y[rows].float(), case.outputs(_values(h)[rows], e), TOLERANCE[case.dtype])
        unused = torch.ones(len(y), dtype=torch.bool)
        for _, rows in case.filled():
            unused[rows.start : rows.start + -(-(rows.stop - rows.start) // ALIGN) * ALIGN] = False
        assert y[unused.cuda()].isnan().all()

    @pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
    def test_again_gives_the_same_bits(self, config):
        case = Case(torch.bfloat16, 512, 384, SWIGLU, False, config=config)
        x = Fp8Rows.empty(case.found.max_rows, case.hidden, torch.device("cuda"))
        quantize_pairs(case.x, case.found.row_of_pair, 1, x)
        runs = []
        for programs in (PROGRAMS, 132):
            h = case.rows(case.inter)
            up(x, case.found, case.weights, SWIGLU, 1, h, config, programs=programs)
            runs.append(_values(h)[torch.cat([torch.arange(rows.start, rows.stop) for _, rows in case.filled()])])
        assert_bitwise_equal(*runs)

    def test_no_pair_is_here(self):
        weights = _weights(device="cuda")
        found = map_experts(torch.full((4, 2), -1, dtype=torch.int32, device="cuda"), 0, 1, tile=128, align=ALIGN)
        h = Fp8Rows.empty(found.max_rows, 256, torch.device("cuda"))
        y = torch.zeros(found.max_rows, 256, dtype=torch.bfloat16, device="cuda")
        down(h, found, weights, y, Fp8GluonConfig(), programs=PROGRAMS)
        assert not y.any()


class Case:
    """One pair a token; experts without rows have NaN for weights, which must not reach those before them."""

    def __init__(self, dtype, hidden, inter, activation, bias, *, config, form="blocks"):
        self.generator = torch.Generator(device="cuda").manual_seed(0)
        self.dtype, self.hidden, self.inter, self.activation = dtype, hidden, inter, activation
        num, halves = len(COUNTS), 2 if activation.kind.is_gated else 1
        self.form = form
        fc1, s1, fc1_values = self._quantized(num * halves, inter, hidden)
        w2, s2, self.w2 = self._quantized(num, hidden, inter)
        self.fc1 = fc1_values.view(num, halves * inter, hidden)
        by_row = form == "rows"
        self.weights = Fp8Weights(
            fc1=in_blocks(fc1.view(num, halves * inter, hidden)),
            s1=torch.ones(num, halves, 1, 1, device="cuda") if by_row else s1.view(num, halves, *s1.shape[1:]),
            w2=in_blocks(w2),
            s2=torch.ones(num, 1, 1, device="cuda") if by_row else s2,
            b1_EG=self._randn(num, halves * inter).to(dtype) if bias else None,
            b2_EH=self._randn(num, hidden).to(dtype) if bias else None,
            gated=activation.kind.is_gated,
            blocks=form == "blocks",
            r1=s1.reshape(num, halves * inter) if by_row else None,
            r2=s2.reshape(num, hidden) if by_row else None,
        )
        unused = (torch.tensor(COUNTS) == 0).cuda()
        self.weights.fc1.view(torch.uint8)[unused] = NAN
        self.weights.w2.view(torch.uint8)[unused] = NAN
        ids = torch.tensor([e for e, count in enumerate(COUNTS) for _ in range(count)] + [-1, -1], dtype=torch.int32)
        ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(1))].view(-1, 1).cuda()
        self.x = self._randn(len(ids), hidden).to(dtype)
        self.x[ids[:, 0] < 0] = torch.nan
        self.found = map_experts(ids, 0, num, tile=config.rows, align=ALIGN)

    def rows(self, width, group=128):
        """Rows of NaN, or those of the calibrated scale."""
        if self.form == "static":
            rows = Fp8Rows.empty_static(self.found.max_rows, width, torch.full((1,), STATIC, device="cuda"))
        else:
            rows = Fp8Rows.empty(self.found.max_rows, width, torch.device("cuda"), group=group)
            rows.scales.fill_(torch.nan)
        rows.data.view(torch.uint8).fill_(NAN)
        return rows

    def filled(self):
        """Experts with rows, and these."""
        offsets = self.found.offsets.tolist()
        return [(e, slice(offsets[e], offsets[e] + count)) for e, count in enumerate(COUNTS) if count]

    def neurons(self, x, e):
        fc1 = x @ self.fc1[e].T
        if self.weights.b1_EG is not None:
            fc1 += self.weights.b1_EG[e].float()
        return self.activation(*fc1.chunk(2, 1)) if self.weights.gated else self.activation(fc1, None)

    def outputs(self, h, e):
        y = h @ self.w2[e].T
        return y if self.weights.b2_EH is None else y + self.weights.b2_EH[e].float()

    def _quantized(self, num, rows, columns):
        """Codes, scales and values, of blocks of unlike scales, which no other block's would do for."""
        blocks = torch.rand(num, -(-rows // 128), -(-columns // 128), generator=self.generator, device="cuda") + 0.2
        unlike = blocks.repeat_interleave(128, 1).repeat_interleave(128, 2)[:, :rows, :columns]
        matrices = self._randn(num, rows, columns) * columns**-0.5 * unlike
        block = {"blocks": (128, 128), "rows": (1, None)}.get(self.form, (None, None))
        found = quantize(matrices, Format(Element.E4M3, ScaleType.FLOAT, block))
        return found.data, found.scale.contiguous(), found.dequantize()

    def _randn(self, *shape):
        return torch.randn(shape, generator=self.generator, device="cuda")


def _values(rows):
    """What the rows stand for."""
    if rows.static:
        return rows.data.float() * rows.scales
    scales = rows.scales.T.repeat_interleave(rows.group or rows.data.shape[1], 1)
    return rows.data.float() * scales[:, : rows.data.shape[1]]


def _rounded(x, rows):
    """`x` as `rows` hold it."""
    if rows.static:
        return (x / STATIC).clamp(-448, 448).to(torch.float8_e4m3fn).float() * STATIC
    return quantize(x, Format(Element.E4M3, ScaleType.FLOAT, (1, 128))).dequantize()


def _weights(device="cpu"):
    """One expert, H = I = 256."""
    codes = torch.zeros(1, 512, 256, device=device).to(torch.float8_e4m3fn)
    s1, s2 = torch.ones(1, 2, 2, 2, device=device), torch.ones(1, 2, 2, device=device)
    return Fp8Weights(in_blocks(codes), s1, in_blocks(codes[:, :256]), s2)


def _down(weights, h, config=CONFIGS["as many stages as fit"]):
    found = ExpertMap(*(torch.zeros(1, dtype=torch.int32) for _ in ExpertMap._fields))
    down(h, found, weights, torch.empty(64, 256, dtype=torch.bfloat16), config, programs=PROGRAMS)
