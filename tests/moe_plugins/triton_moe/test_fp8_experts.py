"""The fp8 kernels against float32 on the same codes and scales."""

import pytest
import torch

from moe_core.activation import Activation
from moe_core.contract.vocabulary import ActivationType
from moe_core.quantization import Element, Format, ScaleType, quantize
from moe_core.testing.numerics import assert_close
from moe_plugins.triton_moe import fp8_grouped, fp8_no_sort, fp8_swap_ab
from moe_plugins.triton_moe.expert_map import map_experts
from moe_plugins.triton_moe.fp8_grouped import Fp8GroupedConfig
from moe_plugins.triton_moe.fp8_swap_ab import Fp8SwapConfig
from moe_plugins.triton_moe.fp8_weights import Fp8Rows, Fp8Weights, in_blocks
from moe_plugins.triton_moe.no_sort import NoSortConfig
from moe_plugins.triton_moe.quant_rows import quantize_pairs, quantize_rows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = 1e-3
"""Two rounding steps of float16: the kernels round once, and so does what they read."""
CODES_TOLERANCE = 1e-2
"""The tensor cores add products of e4m3 to about 4e-4 of a sum, which puts a code in a hundred on the other side of a
rounding boundary, a twelfth of its value away. A code or scale that is wrong in earnest costs more than 3e-2."""

SWIGLU = Activation(ActivationType.SWIGLU)
COUNTS = (5, 0, 70, 1)
"""Rows per expert: short tiles, no tile, several tiles."""
KERNELS = {
    "swap_ab": (fp8_swap_ab, Fp8SwapConfig(columns=64, block=128), Fp8SwapConfig(columns=64, block=64)),
    "swap_ab, 128 columns": (
        fp8_swap_ab, Fp8SwapConfig(rows=8, columns=128, unroll=2), Fp8SwapConfig(rows=8, columns=32, unroll=2)
    ),
    "grouped": (fp8_grouped, Fp8GroupedConfig(), Fp8GroupedConfig(columns=128, block=64)),
    "grouped, two passes": (fp8_grouped, Fp8GroupedConfig(passes=2), Fp8GroupedConfig(columns=128)),
    "grouped, of rows": (fp8_grouped, Fp8GroupedConfig(gathers=False), Fp8GroupedConfig(block=64, group=1)),
    "grouped, rows 128": (
        fp8_grouped, Fp8GroupedConfig(rows=128, columns=128, group=1), Fp8GroupedConfig(rows=128, columns=128),
    ),
}  # fmt: skip


def _quantized(matrices, block):
    """Codes, scales and values of float32 matrices ``[E, N, K]``."""
    found = quantize(matrices, Format(Element.E4M3, ScaleType.FLOAT, block))
    return found.data, found.scale.contiguous(), found.dequantize()


def _by_row(scale, count):
    """Scales of rows as the kernels take them: a one for each matrix, and those of `count` experts' rows."""
    return torch.ones(len(scale), 1, 1, device=DEVICE), scale.reshape(count, -1)


def _values(rows):
    """What the rows stand for."""
    if rows.static:
        return rows.data.float() * rows.scales
    width = rows.data.shape[1]
    return rows.data.float() * rows.scales.T.repeat_interleave(rows.group or width, 1)[:, :width]


def _rounded(x, rows):
    """`x` as rows of the form of `rows` would hold it."""
    if rows.static:
        return (x / rows.scales).clamp(-448, 448).to(torch.float8_e4m3fn).float() * rows.scales
    return quantize(x, Format(Element.E4M3, ScaleType.FLOAT, (1, rows.group or None))).dequantize()


class Case:
    """A layer's experts with `counts` rows each, of tokens that choose two experts or one and a foreign slot."""

    def __init__(
        self, hidden=144, inter=208, activation=SWIGLU, bias=False, blocks=True, rows=False, static=False, counts=COUNTS
    ):
        self.generator = torch.Generator().manual_seed(0)
        num_local, gated = len(counts), activation.kind.is_gated
        self.hidden, self.inter, self.activation, self.static, self.blocks = hidden, inter, activation, static, blocks
        halves = 2 if gated else 1
        # Blocks of unlike scales, which no other block's would do for.
        fc1 = self._randn(num_local * halves, inter, hidden) * hidden**-0.5 * self._unlike(inter, hidden)
        w2 = self._randn(num_local, hidden, inter) * inter**-0.5 * self._unlike(hidden, inter)
        block = (128, 128) if blocks else (1 if rows else None, None)
        fc1_codes, s1, fc1 = _quantized(fc1, block)
        w2_codes, s2, self.w2 = _quantized(w2, block)
        s1, r1 = _by_row(s1, num_local) if rows else (s1, None)
        s2, r2 = _by_row(s2, num_local) if rows else (s2, None)
        self.fc1 = fc1.view(num_local, halves, inter, hidden)
        self.weights = Fp8Weights(
            fc1=in_blocks(fc1_codes.view(num_local, halves * inter, hidden)),
            s1=s1.view(num_local, halves, *s1.shape[1:]),
            w2=in_blocks(w2_codes),
            s2=s2,
            b1_EG=self._randn(num_local, halves * inter).half() if bias else None,
            b2_EH=self._randn(num_local, hidden).half() if bias else None,
            gated=gated,
            blocks=blocks,
            r1=r1,
            r2=r2,
        )
        slots = torch.tensor([e for e, count in enumerate(counts) for _ in range(count)] + [-1, num_local])
        self.ids = slots[torch.randperm(len(slots), generator=self.generator)].int().reshape(-1, 2).to(DEVICE)
        self.x = self._randn(len(self.ids), hidden).half()
        self.x[(self.ids < 0).all(1) | (self.ids == num_local).all(1)] = torch.nan
        self.pairs = [(p, e) for p, e in enumerate(self.ids.flatten().tolist()) if 0 <= e < num_local]

    def rows(self, num_rows, width, group, scale=0.01):
        if self.static:
            return Fp8Rows.empty_static(num_rows, width, torch.tensor([scale], device=DEVICE))
        return Fp8Rows.empty(num_rows, width, torch.device(DEVICE), group=group)

    def up(self, kernels, config):
        """h of the pairs, and what it should be."""
        found = self._map(config)
        gathers, group = getattr(config, "gathers", True), 128 if self.blocks else 0
        x = self.rows(len(self.x) if gathers else found.max_rows, self.hidden, group)
        if gathers:
            quantize_rows(self.x, x)
        else:
            quantize_pairs(self.x, found.row_of_pair, 2, x)
        h = self.rows(found.max_rows, self.inter, getattr(config, "scaled", config.columns))
        kernels.up(x, found, self.weights, self.activation, 2, h, config)
        tokens = _values(x)[[pair // 2 for pair, _ in self.pairs] if gathers else self._rows_of_pairs(found)]
        expected = torch.stack([self._neurons(token, e) for token, (_, e) in zip(tokens, self.pairs, strict=True)])
        return _values(h)[self._rows_of_pairs(found)], _rounded(expected, h)

    def down(self, kernels, config):
        found = self._map(config)
        h = self.rows(found.max_rows, self.inter, config.block)
        at = self._rows_of_pairs(found)
        given = torch.full(h.data.shape, torch.nan, dtype=torch.float16, device=DEVICE)
        given[at] = self._randn(len(self.pairs), self.inter).half()
        if self.static:
            quantize_rows(given, h)
        else:
            codes = quantize(given.nan_to_num(), Format(Element.E4M3, ScaleType.FLOAT, (1, config.block)))
            h.data.copy_(codes.data)
            h.scales.copy_(codes.scale.T)
        y = torch.full((found.max_rows, self.hidden), torch.nan, dtype=torch.float16, device=DEVICE)
        kernels.down(h, found, self.weights, y, config)
        values = _values(h)
        expected = [self._outputs(values[row], e) for row, (_, e) in zip(at, self.pairs, strict=True)]
        return y[at].float(), torch.stack(expected)

    def layer(self, config):
        """Output of the kernels without a map, and what it should be."""
        scales = torch.rand(self.ids.shape, generator=self.generator).to(DEVICE)
        h = torch.full((self.ids.numel(), self.inter), torch.nan, dtype=torch.float16, device=DEVICE)
        out = torch.full_like(self.x, torch.nan)
        fp8_no_sort.run(self.x, self.ids, scales, self.weights, self.activation, 0, h, out, config)
        expected = torch.zeros(self.x.shape, device=DEVICE)
        for pair, e in self.pairs:
            neurons = self._neurons(self.x[pair // 2].float(), e)
            expected[pair // 2] += scales.flatten()[pair] * self._outputs(neurons, e)
        return out.float(), expected

    def _randn(self, *shape):
        return torch.randn(shape, generator=self.generator).to(DEVICE)

    def _unlike(self, rows, columns):
        blocks = torch.rand(-(-rows // 128), -(-columns // 128), generator=self.generator) + 0.2
        return blocks.repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :columns].to(DEVICE)

    def _map(self, config):
        return map_experts(self.ids, 0, len(self.w2), tile=config.rows, align=getattr(config, "align", 1))

    def _rows_of_pairs(self, found):
        return found.row_of_pair[[pair for pair, _ in self.pairs]].long()

    def _neurons(self, token, e):
        fc1 = (self.fc1[e] @ token).flatten()
        if self.weights.b1_EG is not None:
            fc1 += self.weights.b1_EG[e].float()
        return self.activation(*fc1.view(self.fc1.shape[1:3])) if self.weights.gated else self.activation(fc1, None)

    def _outputs(self, neurons, e):
        y = self.w2[e] @ neurons
        return y if self.weights.b2_EH is None else y + self.weights.b2_EH[e].float()


FORMS = {
    "blocks": {},
    "per tensor, dynamic": {"blocks": False},
    "per tensor, static": {"blocks": False, "static": True},
    "per row": {"blocks": False, "rows": True},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("name", KERNELS)
def test_up(name, form):
    kernels, config, _ = KERNELS[name]
    assert_close(*Case(**form).up(kernels, config), CODES_TOLERANCE)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("name", KERNELS)
def test_down(name, form):
    kernels, _, config = KERNELS[name]
    assert_close(*Case(**form).down(kernels, config), TOLERANCE)


@pytest.mark.parametrize(("hidden", "inter"), [(128, 256), (272, 48)])
@pytest.mark.parametrize("name", KERNELS)
def test_sizes(name, hidden, inter):
    kernels, up, down = KERNELS[name]
    case = Case(hidden, inter, bias=True)
    assert_close(*case.up(kernels, up), CODES_TOLERANCE)
    assert_close(*case.down(kernels, down), TOLERANCE)


@pytest.mark.parametrize("name", ["swap_ab", "grouped"])
def test_no_tile_writes_rows_of_the_next_expert(name):
    """Where programs run one after another the next expert would repair the damage, so the last one is looked at."""
    kernels, config, down = KERNELS[name]
    case = Case(128, 64, counts=(18, 2))
    found = case._map(config)
    h = case.rows(found.max_rows, 64, 64)
    h.scales.fill_(torch.nan)
    h.data.fill_(torch.nan)
    x = case.rows(*case.x.shape, 128)
    quantize_rows(case.x, x)
    kernels.up(x, found, case.weights, SWIGLU, 2, h, config)
    y = torch.full((found.max_rows, 128), torch.nan, dtype=torch.float16, device=DEVICE)
    kernels.down(h, found, case.weights, y, down)
    first_foreign = int(found.offsets[-1]) + 2
    assert first_foreign < found.max_rows
    assert h.data.float()[first_foreign:].isnan().all()
    assert y[first_foreign:].isnan().all()


DYNAMIC = {name: form for name, form in FORMS.items() if "static" not in form}
ACTIVATIONS = [
    Activation(ActivationType.RELU2),
    Activation(ActivationType.SWIGLU_BIAS, alpha=1.702, beta=1.0, clamp=1.0),
]


@pytest.mark.parametrize("form", DYNAMIC.values(), ids=DYNAMIC)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda activation: str(activation.kind))
@pytest.mark.parametrize("name", ["swap_ab", "grouped", "grouped, two passes"])
def test_activations(name, activation, form):
    kernels, config, _ = KERNELS[name]
    case = Case(activation=activation, bias=True, **form)
    assert_close(*case.up(kernels, config), CODES_TOLERANCE)


FEW = (2, 0, 3, 1)


@pytest.mark.parametrize("form", DYNAMIC.values(), ids=DYNAMIC)
@pytest.mark.parametrize(
    "config",
    [
        NoSortConfig(up_neurons=16, down_columns=16),
        NoSortConfig(up_neurons=64, up_block=128, down_columns=32, down_block=128),
    ],
    ids=["at once", "in steps"],
)
@pytest.mark.parametrize("activation", [SWIGLU, *ACTIVATIONS], ids=lambda activation: str(activation.kind))
def test_no_sort(activation, config, form):
    case = Case(activation=activation, bias=activation is not SWIGLU, counts=FEW, **form)
    assert_close(*case.layer(config), TOLERANCE)


def test_no_sort_skips_foreign_experts():
    case = Case(counts=FEW)
    case.ids[:] = torch.tensor([-1, len(FEW)])
    case.x[:] = torch.nan
    case.pairs = []
    assert_close(*case.layer(NoSortConfig(up_neurons=64, down_columns=64)), 0.0)


@pytest.mark.parametrize("name", ["swap_ab", "grouped"])
def test_steps_are_of_one_block_and_have_one_scale(name):
    kernels, up, down = KERNELS[name]
    case = Case()
    h = case.rows(8, 208, 64)
    for form in FORMS.values():
        with pytest.raises(ValueError, match="asked for steps of 256 columns; needed a divisor of 128"):
            Case(**form).up(kernels, up._replace(block=256))
    with pytest.raises(ValueError, match="found h in groups of 64"):
        kernels.up(h, case._map(up), case.weights, SWIGLU, 2, h, up._replace(columns=32, block=32))
    with pytest.raises(ValueError, match="asked for steps of 128 columns; needed a divisor of 64"):
        kernels.down(h, case._map(down), case.weights, case.x, down._replace(block=128))
