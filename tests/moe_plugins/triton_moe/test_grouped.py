"""The two projections of many rows per expert against float32, in tiles of every kind."""

import pytest
import torch

from moe_core.activation import Activation
from moe_core.contract.vocabulary import ActivationType
from moe_core.fused_weights import FusedExpertWeights
from moe_core.testing.numerics import assert_close
from moe_plugins.triton_moe.expert_map import map_experts
from moe_plugins.triton_moe.grouped import GroupedConfig, down, up

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = 1e-3
"""Two rounding steps of float16: the kernels round once, and so does what they read."""
PROGRAMS = 3
"""Fewer than there are tiles, so that a persistent program takes several."""

SWIGLU = Activation(ActivationType.SWIGLU)
COUNTS = (5, 0, 70, 1, 0)
"""Rows per expert: a short tile, none, a full tile and a short one (of 64 rows) or one of more than 64 (of 128)."""

CONFIGS = {
    "rows 64": GroupedConfig(rows=64, columns=32, block=32),
    "rows 64, not aligned": GroupedConfig(rows=64, align=1, columns=32, block=32),
    "rows 128, stored by element": GroupedConfig(rows=128, columns=32, block=32),
    "rows 128, stored in boxes": GroupedConfig(rows=128, align=128, columns=32, block=32),
    "mixed": GroupedConfig(rows=128, columns=32, block=32, mixed=True),
    "mixed, not aligned": GroupedConfig(rows=128, align=1, columns=32, block=32, mixed=True),
    "persistent": GroupedConfig(rows=128, columns=32, block=32, persistent=True),
    "persistent, stored in boxes": GroupedConfig(rows=128, align=128, columns=32, block=32, persistent=True),
    "one row tile at a time": GroupedConfig(rows=64, columns=32, block=32, group=1),
}


class Case:
    """A layer's experts with `counts` rows each, of tokens that choose two experts or one and a foreign slot."""

    def __init__(self, config, hidden=64, inter=64, activation=SWIGLU, bias=False, counts=COUNTS):
        generator = torch.Generator().manual_seed(0)

        def randn(*shape, scale=1.0):
            return (torch.randn(shape, generator=generator) * scale).half().to(DEVICE)

        num_local, self.config, self.activation = len(counts), config, activation
        width = inter * (2 if activation.kind.is_gated else 1)
        self.weights = FusedExpertWeights(
            fc1_EGH=randn(num_local, width, hidden, scale=hidden**-0.5),
            w2_EHI=randn(num_local, hidden, inter, scale=inter**-0.5),
            fc1_bias_EG=randn(num_local, width) if bias else None,
            b2_EH=randn(num_local, hidden) if bias else None,
            gated=activation.kind.is_gated,
        )
        slots = torch.tensor([e for e, count in enumerate(counts) for _ in range(count)] + [-1, num_local])
        self.ids = slots[torch.randperm(len(slots), generator=generator)].int().reshape(-1, 2).to(DEVICE)
        self.x = randn(len(self.ids), hidden)
        self.x[(self.ids < 0).all(1) | (self.ids == num_local).all(1)] = torch.nan
        self.found = map_experts(self.ids, 0, num_local, tile=config.rows, align=config.align)

    def up(self):
        """Rows of pairs, in order of pairs, and what they should be."""
        h = torch.full((self.found.max_rows, self.weights.w2_EHI.shape[2]), torch.nan).half().to(DEVICE)
        up(self.x, self.found, self.weights, self.activation, 2, h, self.config, programs=PROGRAMS)
        expected = [self._hidden(self.x[pair // 2].float(), e) for pair, e in self._pairs()]
        return self._rows(h), torch.stack(expected)

    def down(self):
        h = torch.full((self.found.max_rows, self.weights.w2_EHI.shape[2]), torch.nan).half()
        pairs = self._pairs()
        rows = torch.randn(len(pairs), h.shape[1], generator=torch.Generator().manual_seed(1)).half()
        h[self.found.row_of_pair.cpu()[[pair for pair, _ in pairs]].long()] = rows
        y = torch.full((self.found.max_rows, self.weights.w2_EHI.shape[1]), torch.nan).half().to(DEVICE)
        down(h.to(DEVICE), self.found, self.weights, y, self.config, programs=PROGRAMS)
        w2, b2 = self.weights.w2_EHI.float(), self.weights.b2_EH
        expected = [
            w2[e] @ row + (0.0 if b2 is None else b2[e].float())
            for row, (_, e) in zip(rows.float().to(DEVICE), pairs, strict=True)
        ]
        return self._rows(y), torch.stack(expected)

    def _pairs(self):
        ids = self.ids.flatten().tolist()
        return [(pair, e) for pair, e in enumerate(ids) if 0 <= e < len(self.weights.w2_EHI)]

    def _rows(self, out):
        return out[self.found.row_of_pair[[pair for pair, _ in self._pairs()]].long()].float()

    def _hidden(self, x, e):
        fc1 = self.weights.fc1_EGH[e].float() @ x
        if self.weights.fc1_bias_EG is not None:
            fc1 += self.weights.fc1_bias_EG[e].float()
        return self.activation(*(half if half is None else half[0] for half in self.weights.halves(fc1[None])))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_up(config):
    assert_close(*Case(config).up(), TOLERANCE)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_down(config):
    assert_close(*Case(config).down(), TOLERANCE)


@pytest.mark.parametrize("name", ["rows 64", "mixed", "persistent, stored in boxes"])
@pytest.mark.parametrize(("hidden", "inter"), [(40, 72), (72, 24)])
def test_sizes_that_no_tile_divides(name, hidden, inter):
    case = Case(CONFIGS[name], hidden, inter, bias=True)
    assert_close(*case.up(), TOLERANCE)
    assert_close(*case.down(), TOLERANCE)


@pytest.mark.parametrize(
    "activation",
    [
        Activation(ActivationType.RELU2),
        Activation(ActivationType.SWIGLU_BIAS, alpha=1.702, beta=1.0, clamp=1.0),
    ],
    ids=lambda activation: str(activation.kind),
)
@pytest.mark.parametrize("bias", [False, True])
def test_activations(activation, bias):
    assert_close(*Case(CONFIGS["mixed"], activation=activation, bias=bias).up(), TOLERANCE)


@pytest.mark.parametrize("counts", [(0, 140), (64, 0, 64, 128), (1,)], ids=str)
@pytest.mark.parametrize("name", ["rows 64", "mixed", "persistent"])
def test_counts(name, counts):
    case = Case(CONFIGS[name], counts=(*counts, sum(counts) % 2))
    assert_close(*case.up(), TOLERANCE)
    assert_close(*case.down(), TOLERANCE)


@pytest.mark.parametrize("name", ["rows 64", "rows 128, stored by element", "mixed", "persistent"])
def test_no_tile_writes_rows_of_the_next_expert(name):
    """Where programs run one after another the next expert would repair the damage, so the last one is looked at."""
    case = Case(CONFIGS[name], counts=(70, 64))
    h = torch.full((case.found.max_rows, 64), torch.nan).half().to(DEVICE)
    up(case.x, case.found, case.weights, case.activation, 2, h, case.config, programs=PROGRAMS)
    y = torch.full_like(h, torch.nan)
    down(torch.zeros_like(h), case.found, case.weights, y, case.config, programs=PROGRAMS)
    first_foreign = int(case.found.offsets[-1]) + 64
    assert first_foreign < case.found.max_rows
    assert h[first_foreign:].isnan().all()
    assert y[first_foreign:].isnan().all()


@pytest.mark.parametrize("config", [GroupedConfig(mixed=True, persistent=True), GroupedConfig(mixed=True, rows=64)])
def test_mixed_has_limits(config):
    with pytest.raises(ValueError, match="a mixed kernel needs rows=128 and persistent=False"):
        Case(config).up()
