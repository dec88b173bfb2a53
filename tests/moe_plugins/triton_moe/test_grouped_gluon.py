"""The Gluon kernels against float32, on a Hopper GPU; elsewhere, what they refuse."""

import pytest
import torch
import triton

from moe_core.activation import Activation
from moe_core.contract.vocabulary import ActivationType
from moe_core.fused_weights import FusedExpertWeights
from moe_core.testing.numerics import assert_close
from moe_plugins.triton_moe.expert_map import map_experts
from moe_plugins.triton_moe.grouped_gluon import ALIGN, ROWS, GluonConfig, available, down, up

TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 6e-4}
"""Each kernel rounds once."""
PROGRAMS = 5
"""Few, so that each takes many tiles and its ring of stages runs on across them."""
COUNTS = (1, 0, 63, 64, 65, 128, 129, 0, 193, 2, 0)

SWIGLU = Activation(ActivationType.SWIGLU)
SWIGLU_BIAS = Activation(ActivationType.SWIGLU_BIAS, alpha=1.702, beta=1.0, clamp=7.0)
RELU2 = Activation(ActivationType.RELU2)

CONFIGS = {
    "wide": GluonConfig(),
    "wide, one half ahead": GluonConfig(lead=2),
    "narrow": GluonConfig(columns=128, stages=6),
    "narrow, one half ahead": GluonConfig(columns=128, stages=6, lead=3, group=2),
}


class TestOnAnyMachine:
    def test_other_versions_of_triton_are_refused_by_name(self, monkeypatch):
        monkeypatch.setattr(triton, "__version__", "3.5.1")
        assert available() == "Gluon kernels need Triton 3.6, found 3.5.1"

    def test_other_gpus_are_refused(self, monkeypatch):
        monkeypatch.setattr(triton, "__version__", "3.6.0")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (10, 0))
        assert available() == "Gluon kernels need a Hopper GPU"


@pytest.mark.gpu
@pytest.mark.skipif(available() is not None, reason=str(available()))
class TestOnHopper:
    @pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
    @pytest.mark.parametrize(
        ("dtype", "hidden", "inner", "activation", "bias"),
        [
            pytest.param(torch.bfloat16, 512, 704, SWIGLU, False, id="gated"),
            pytest.param(torch.float16, 576, 360, SWIGLU_BIAS, True, id="gated with bias"),
            pytest.param(torch.bfloat16, 512, 200, RELU2, True, id="not gated, K no multiple of a stage"),
        ],
    )
    def test_both_projections(self, config, dtype, hidden, inner, activation, bias):
        weights = _weights(dtype, hidden, inner, activation, bias)
        ids = torch.tensor([e for e, count in enumerate(COUNTS) for _ in range(count)] + [-1, -1], dtype=torch.int32)
        ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(1))].view(-1, 1).cuda()
        x = torch.randn(len(ids), hidden, device="cuda", dtype=dtype)
        x[ids[:, 0] < 0] = torch.nan
        found = map_experts(ids, 0, len(COUNTS), tile=ROWS, align=ALIGN)
        h = x.new_full((found.max_rows, inner), torch.nan)
        y = x.new_full((found.max_rows, hidden), torch.nan)

        up(x, found, weights, activation, 1, h, config, programs=PROGRAMS)
        down(h, found, weights, y, config, programs=PROGRAMS)
        assert not found.turns.any()  # as the next kernel on this map needs them

        for e, count in enumerate(COUNTS):
            if count:
                rows = slice(int(found.offsets[e]), int(found.offsets[e]) + count)
                fc1 = x[ids[:, 0] == e].float() @ weights.fc1_EGH[e].float().T
                fc2 = h[rows].float() @ weights.w2_EHI[e].float().T
                if bias:
                    fc1, fc2 = fc1 + weights.fc1_bias_EG[e].float(), fc2 + weights.b2_EH[e].float()
                assert_close(h[rows].float(), activation(*weights.halves(fc1)), TOLERANCE[dtype])
                assert_close(y[rows].float(), fc2, TOLERANCE[dtype])

    def test_no_pair_is_here(self):
        weights = _weights(torch.bfloat16, 512, 256, SWIGLU, False)
        ids = torch.full((4, 2), -1, dtype=torch.int32, device="cuda")
        found = map_experts(ids, 0, len(COUNTS), tile=ROWS, align=ALIGN)
        h = torch.zeros(found.max_rows, 256, device="cuda", dtype=torch.bfloat16)
        up(h.new_zeros(4, 512), found, weights, SWIGLU, 2, h, GluonConfig(lead=2), programs=PROGRAMS)
        assert not h.any()

    def test_a_lead_that_the_ring_cannot_hold_is_refused(self):
        weights = _weights(torch.bfloat16, 512, 256, SWIGLU, False)
        ids = torch.zeros(4, 2, dtype=torch.int32, device="cuda")
        found = map_experts(ids, 0, len(COUNTS), tile=ROWS, align=ALIGN)
        h = torch.zeros(found.max_rows, 256, device="cuda", dtype=torch.bfloat16)
        with pytest.raises(ValueError, match=r"lead needs at least two stages more; try lead=2"):
            up(h.new_zeros(4, 512), found, weights, SWIGLU, 2, h, GluonConfig(lead=3), programs=PROGRAMS)


def _weights(dtype, hidden, inner, activation, bias):
    """Experts without rows have NaN for weights, which must not reach the columns of those before them."""
    generator = torch.Generator(device="cuda").manual_seed(0)

    def randn(*shape, scale=1.0):
        return (torch.randn(shape, generator=generator, device="cuda") * scale).to(dtype)

    num, width = len(COUNTS), inner * (2 if activation.kind.is_gated else 1)
    weights = FusedExpertWeights(
        fc1_EGH=randn(num, width, hidden, scale=hidden**-0.5),
        w2_EHI=randn(num, hidden, inner, scale=inner**-0.5),
        fc1_bias_EG=randn(num, width) if bias else None,
        b2_EH=randn(num, hidden) if bias else None,
        gated=activation.kind.is_gated,
    )
    unused = torch.tensor(COUNTS) == 0
    weights.fc1_EGH[unused.cuda()] = torch.nan
    weights.w2_EHI[unused.cuda()] = torch.nan
    return weights
