"""Random experts in every format, and their values."""

import pytest
import torch

from moe_core.contract.vocabulary import ActivationType, QuantAlgo
from moe_core.measure import experts
from moe_core.measure.experts import apart, dequantized_experts, num_bytes, random_experts
from moe_core.quantization import dequantized, weight_format
from moe_core.testing.numerics import assert_bitwise_equal
from moe_core.testing.problems import small_problem
from moe_core.weights import misfits

CPU = torch.device("cpu")
QUANTIZED = [quant for quant in QuantAlgo if quant is not QuantAlgo.NONE]


def large_problem(**changes):
    """Wide enough for blocks of 128, and for the spread of scales to average out."""
    return small_problem(hidden_size=256, intermediate_size=384, num_experts=4, **changes)


@pytest.mark.parametrize("changes", [{}, {"bias": True}, {"activation": ActivationType.RELU2}])
def test_shapes_are_those_of_the_problem(changes):
    weights = random_experts(small_problem(**changes), CPU, seed=1)
    assert weights.fc1_EGH.shape == (8, 64 if weights.gated else 32, 64)
    assert weights.w2_EHI.shape == (8, 64, 32)
    assert (weights.fc1_bias_EG is not None) is bool(changes.get("bias"))
    assert float(weights.w2_EHI.float().std()) == pytest.approx(32**-0.5, rel=0.02)
    assert_bitwise_equal(random_experts(small_problem(**changes), CPU, seed=1).fc1_EGH, weights.fc1_EGH)


@pytest.mark.parametrize("quant", QUANTIZED)
def test_quantized_experts_are_as_a_checkpoint_has_them(quant):
    problem = large_problem(quant=quant, bias=True)
    weights, again = (random_experts(problem, CPU, seed=1) for _ in range(2))
    assert not misfits(
        weights, num_experts=4, hidden_size=256, intermediate_size=384, gated=True, format_=weight_format(quant)
    )
    assert set(weights.given()) == {"w1_EIH", "w2_EHI", "w3_EIH", "b1_EI", "b3_EI", "b2_EH"}
    for name, tensor in weights.tensors().items():
        assert_bitwise_equal(again.tensors()[name], tensor)


@pytest.mark.parametrize("quant", QUANTIZED)
def test_quantized_values_keep_activations_of_order_one(quant):
    weights = random_experts(large_problem(quant=quant), CPU, seed=1)
    for matrix in (weights.w1_EIH, weights.w2_EHI, weights.w3_EIH):
        values = dequantized(matrix, torch.float32)
        assert bool(values.isfinite().all())
        assert float(values.std()) * matrix.shape[-1] ** 0.5 == pytest.approx(1, rel=0.15)


def test_codes_differ_between_experts_matrices_and_seeds():
    problem = large_problem(quant=QuantAlgo.FP8)
    weights, other = (random_experts(problem, CPU, seed) for seed in (1, 2))
    codes = [weights.w1_EIH[0], weights.w1_EIH[1], weights.w3_EIH[0], other.w1_EIH[0]]
    assert len({bytes(one.data.view(torch.uint8).flatten().tolist()) for one in codes}) == 4


def test_what_is_drawn_at_once_is_bounded(monkeypatch):
    drawn = []

    def encode(element, values):
        drawn.append(len(values))
        return values.to(torch.float8_e4m3fn)

    monkeypatch.setattr(experts, "AT_ONCE", 3 * 256 * 384)
    monkeypatch.setattr(experts, "encode", encode)
    random_experts(large_problem(quant=QuantAlgo.FP8), CPU, seed=0)
    assert drawn == [3, 1] * 3


def test_awq_has_zero_points_and_others_have_none():
    def zeros(quant):
        return random_experts(large_problem(quant=quant), CPU, seed=0).w1_EIH.zero

    assert zeros(QuantAlgo.W4A16_AWQ).unique().tolist() == [7, 8, 9]
    assert zeros(QuantAlgo.W4A16_GPTQ) is None


def test_scales_of_integers_are_in_the_activations_type():
    def scale(quant):
        return random_experts(large_problem(quant=quant), CPU, seed=0).w1_EIH.scale.dtype

    assert scale(QuantAlgo.W4A16_GPTQ) is torch.bfloat16
    assert scale(QuantAlgo.FP8_BLOCK_SCALES) is torch.float32


def test_what_is_unknown_is_refused():
    with pytest.raises(ValueError, match="random experts need quant"):
        random_experts(small_problem(quant=None), CPU, seed=0)


@pytest.mark.parametrize("changes", [{"bias": True}, {"activation": ActivationType.RELU2}])
def test_values_are_those_of_the_codes(changes):
    weights = random_experts(large_problem(quant=QuantAlgo.W4A16_MXFP4, **changes), CPU, seed=0)
    plain = apart(dequantized_experts(weights, torch.bfloat16))
    assert set(plain.given()) == set(weights.given())
    for name, value in weights.given().items():
        assert_bitwise_equal(plain.given()[name], dequantized(value, torch.bfloat16))


def test_bytes_are_those_of_codes_and_scales():
    problem = large_problem(quant=QuantAlgo.W4A16_MXFP4)
    assert num_bytes(random_experts(problem, CPU, seed=0)) == 4 * 3 * 256 * 384 * (4 + 8 / 32) / 8
