"""The activation in the kernels is the activation of the contract; the weighted sum is exact in order of k."""

import pytest
import torch
import triton
import triton.language as tl

from moe_core.activation import Activation
from moe_core.contract.vocabulary import ActivationType as A
from moe_core.testing.numerics import assert_bitwise_equal, assert_close
from moe_plugins.triton_moe.activation import activate, activation_meta
from moe_plugins.triton_moe.reduce import weighted_sum

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ACTIVATIONS = (
    *(Activation(kind) for kind in A if kind not in (A.SWIGLU_BIAS, A.SITU)),
    Activation(A.SWIGLU, clamp=1.5),
    Activation(A.SWIGLU, clamp=0.5, clamp_after_silu=True),
    Activation(A.SWIGLU_BIAS, alpha=1.702, beta=1.0),
    Activation(A.SWIGLU_BIAS, alpha=1.702, beta=1.0, clamp=2.0),
    Activation(A.SITU, alpha=4.0, beta=25.0),
)


@triton.jit
def apply(
    gate, up, out, KIND: tl.constexpr, ALPHA: tl.constexpr, BETA: tl.constexpr, CLAMP: tl.constexpr, AFTER: tl.constexpr
):
    i = tl.arange(0, 1024)
    tl.store(out + i, activate(tl.load(gate + i), tl.load(up + i), KIND, ALPHA, BETA, CLAMP, AFTER))


# A sigmoid far below zero is one over infinity, which only numpy finds worth a word.
@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_formulas(activation):
    generator = torch.Generator().manual_seed(0)
    gate, up = (4 * torch.randn(1024, generator=generator).to(DEVICE) for _ in range(2))
    gate[0], gate[1], gate[2] = 0.0, 60.0, -60.0
    out = torch.full_like(gate, torch.nan)
    apply[(1,)](gate, up, out, **activation_meta(activation))
    assert_close(out, activation(gate, up if activation.kind.is_gated else None), 1e-6)


@pytest.mark.parametrize("hidden", [8, 1032])
def test_sums_in_order_of_k_and_skips_what_has_no_row(hidden):
    generator = torch.Generator().manual_seed(1)
    y = torch.randn(6, hidden, generator=generator).half().to(DEVICE)
    y[5] = torch.nan
    rows = torch.tensor([[0, 4, 2], [-1, 3, -1], [-1, -1, -1]], dtype=torch.int32, device=DEVICE)
    scales = torch.rand(3, 3, generator=generator).to(DEVICE)
    scales[rows < 0] = torch.nan
    out = torch.full((3, hidden), torch.nan, dtype=torch.half, device=DEVICE)
    weighted_sum(y, rows.flatten(), scales, out)
    expected = torch.zeros(3, hidden, device=DEVICE)
    for k in range(3):
        for token in range(3):
            if rows[token, k] >= 0:
                expected[token] += scales[token, k] * y[rows[token, k]].float()
    assert_close(out, expected, 5e-4)
    assert_bitwise_equal(out[2], torch.zeros_like(out[2]))
