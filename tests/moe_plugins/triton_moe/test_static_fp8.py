"""FP8 per tensor with static scales of inputs: what was calibrated is used, and saturates where it says so."""

from dataclasses import dataclass, replace
from functools import cached_property

import pytest
import torch

from moe_core.activation import Activation
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.vocabulary import DType, QuantAlgo
from moe_core.execution import MoERunContext
from moe_core.quantization import quantize
from moe_core.quantization.formats import FP8
from moe_core.testing.backends import CHECKS, BackendTrial
from moe_core.testing.numerics import assert_bitwise_equal, assert_close
from moe_core.testing.problems import ACTIVATIONS, small_problem
from moe_core.testing.weights import calibrated
from moe_plugins.triton_moe.quant_candidates import CANDIDATES

CANDIDATE = next(c for c in CANDIDATES if c.identity == "moe_core.triton.experts.fp8")
CODES_TOLERANCE = 1.5e-2
"""Sums that are added in another order put a code in a hundred on the other side of a rounding boundary."""
TIGHT = {"fc1_input": 0.0025, "fc2_input": 0.002}
"""Scales that a quarter of the inputs saturate."""
TILES = {
    "no_sort": {"up_neurons": 64, "up_block": 128, "down_columns": 128, "down_block": 128},
    "swap_ab": {"up": {"rows": 32, "columns": 128}, "down": {"rows": 32, "columns": 128}},
    "grouped": {"up": {"passes": 2}, "down": {"columns": 128}},
    "grouped, of rows": {"up": {"passes": 2, "gathers": False}, "down": {"columns": 128}},
}
MAPPED = [path for path in TILES if path != "no_sort"]
CUDA = torch.cuda.is_available()
nan_is_loud = pytest.mark.filterwarnings("ignore:All-NaN slice encountered")  # the interpreter's, for rows of nobody
pytestmark = pytest.mark.skipif(CUDA and torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU")


@dataclass(frozen=True)
class Trial(BackendTrial):
    """A trial on one path, with calibrated weights."""

    path: str = "swap_ab"
    scales: tuple = ()

    @cached_property
    def weights(self):
        return calibrated(super().weights, **dict(self.scales))

    def bind(self, *args, **options):
        backend = super().bind(*args, **options)
        backend.use({"path": self.path.partition(",")[0], "config": TILES[self.path]})
        return backend


def static_trial(path, activation="swiglu_bias", **scales):
    sizes = {"hidden_size": 48, "intermediate_size": 64, "num_experts": 3, "top_k": 2}
    problem = small_problem(quant=QuantAlgo.FP8, dtype_act=DType.FLOAT16, **sizes, **ACTIVATIONS[activation])
    device = torch.device("cuda", 0) if CUDA else torch.device("cpu")
    return Trial(CANDIDATE, problem, device, path=path, scales=tuple(scales.items()))


def quantized(x, scale_E):
    """The values of float32 `x` in units of a static scale, saturated."""
    return quantize(x, FP8, static_scale=scale_E[:1].view(1, 1)).dequantize()


def expected_to_the_code(trial, batch):
    """What the formula says of tokens and of what the activation gives, both quantized statically."""
    w, activation = trial.weights, Activation.of(trial.problem)
    x, ids, scales = (
        quantized(batch.x.float(), w.fc1_input_scale_E),
        batch.token_selected_slots,
        batch.token_final_scales,
    )
    gate, up = (
        torch.einsum("th,eih->tei", x, w.dequantize()) + b.float()
        for w, b in ((w.w1_EIH, w.b1_EI), (w.w3_EIH, w.b3_EI))
    )
    h = quantized(activation(gate, up).flatten(0, 1), w.fc2_input_scale_E).view_as(gate)
    y = torch.einsum("tei,ehi->teh", h, w.w2_EHI.dequantize()) + w.b2_EH.float()
    chosen = y.gather(1, ids.long().unsqueeze(-1).expand(-1, -1, y.shape[-1]))
    return (chosen * scales.unsqueeze(-1)).sum(dim=1)


@nan_is_loud
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("path", ["swap_ab", "grouped"])
def test_conforms(path, check):
    check(static_trial(path))


@pytest.mark.parametrize("scales", [{}, TIGHT], ids=["calibrated", "saturating"])
@pytest.mark.parametrize("path", MAPPED)
def test_inputs_are_quantized_by_the_calibrated_scales(path, scales):
    trial = static_trial(path, **scales)
    batch = trial.batch(40)
    expected = expected_to_the_code(trial, batch)
    assert_close(trial.run(trial.bind(), batch), expected, CODES_TOLERANCE)
    if scales:
        with pytest.raises(AssertionError):
            assert_close(expected, trial.expected(batch), trial.tolerance)


def test_few_tokens_are_not_quantized_and_saturate_nothing():
    trial = static_trial("no_sort", **TIGHT)
    batch = trial.batch(3)
    assert_close(trial.run(trial.bind(), batch), trial.expected(batch), 1e-3)


@pytest.mark.parametrize("path", MAPPED)
def test_tokens_travel_in_units_of_the_calibrated_scale(path):
    trial = static_trial(path, **TIGHT)
    apart, together = trial.bind(MoEDeployment(ep_size=2, dp_size=2)), trial.bind(MoEDeployment(ep_size=2))
    batch = trial.batch(6)
    x, x_sf = apart.quantize_input(batch.x)
    assert x.dtype is torch.float8_e4m3fn
    assert_bitwise_equal(x_sf, torch.full((6, 1), TIGHT["fc1_input"], device=x.device))
    moved = MoERunContext(x, batch.token_selected_slots, batch.token_final_scales, x_sf)
    assert_bitwise_equal(apart.run_moe(moved), together.run_moe(batch))
    assert [tensor.shape[0] for tensor in apart.quantize_input(batch.x[:0])] == [0, 0]


def test_other_scales_are_loaded_where_the_first_were():
    trial = static_trial("swap_ab")
    other = replace(trial, scales=tuple(TIGHT.items()))
    backend, batch = trial.bind(), trial.batch(5)
    at = [tensor.data_ptr() for tensor in backend.prepared.tensors()]
    backend.prepare(other.weights)
    assert [tensor.data_ptr() for tensor in backend.prepared.tensors()] == at
    assert_close(trial.run(backend, batch), expected_to_the_code(other, batch), CODES_TOLERANCE)
