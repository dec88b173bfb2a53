"""The twin against the formula, written once more and differently."""

from dataclasses import replace

import pytest
import torch

from moe_core.activation import Activation
from moe_core.quantization import dequantized
from moe_core.reference import reference_moe
from moe_core.testing.numerics import assert_bitwise_equal, assert_close
from moe_core.testing.problems import ACTIVATIONS, small_problem
from moe_core.testing.weights import random_weights


def by_token(problem, x, weights, ids, scales):
    """Token by token and pair by pair, in float64."""
    w = weights.to(dtype=torch.float64)
    y = torch.zeros(*x.shape, dtype=torch.float64)
    for t, row in enumerate(ids.tolist()):
        for k, expert in enumerate(row):
            halves = [
                weight[expert] @ x[t].double() + (bias[expert] if bias is not None else 0)
                for weight, bias in ((w.w1_EIH, w.b1_EI), (w.w3_EIH, w.b3_EI))
                if weight is not None
            ]
            out = w.w2_EHI[expert] @ Activation.of(problem)(*halves)
            y[t] += scales[t, k].double() * (out + (w.b2_EH[expert] if w.b2_EH is not None else 0))
    return y


def batch(problem, tokens=5, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, problem.hidden_size, generator=generator).to(dtype)
    ids = torch.rand(tokens, problem.num_experts, generator=generator).argsort(dim=1)[:, : problem.top_k].int()
    return x, ids, torch.rand(tokens, problem.top_k, generator=generator)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_is_the_weighted_sum_of_experts(activation):
    problem = small_problem(**ACTIVATIONS[activation])
    weights = random_weights(problem, dtype=torch.float32)
    x, ids, scales = batch(problem)
    actual = reference_moe(problem, x, weights, ids, scales)
    assert actual.dtype is torch.float32
    assert_close(actual, by_token(problem, x, weights, ids, scales), 1e-6)


def test_computes_in_float32_whatever_comes_in():
    problem = small_problem()
    weights = random_weights(problem, dtype=torch.bfloat16)
    x, ids, scales = batch(problem, dtype=torch.bfloat16)
    wide = reference_moe(problem, x.float(), weights.to(dtype=torch.float32), ids, scales)
    assert_bitwise_equal(reference_moe(problem, x, weights, ids, scales), wide)


def test_the_output_bias_is_weighed():
    problem = small_problem(bias=True)
    weights = random_weights(problem, dtype=torch.float32)
    x, ids, scales = batch(problem)
    halved = reference_moe(problem, x, weights, ids, scales / 2)
    assert_bitwise_equal(halved * 2, reference_moe(problem, x, weights, ids, scales))


def test_an_expert_that_is_named_twice_counts_twice():
    problem = small_problem(top_k=2)
    weights = random_weights(problem, dtype=torch.float32)
    x, _, _ = batch(problem)
    twice = reference_moe(problem, x, weights, torch.full((5, 2), 3), torch.full((5, 2), 0.25))
    once = reference_moe(problem, x, weights, torch.full((5, 1), 3), torch.full((5, 1), 0.5))
    assert_bitwise_equal(twice, once)


@pytest.mark.parametrize("foreign", [-1, -100, 8, 1000])
def test_foreign_ids_add_exactly_zero_even_to_nan(foreign):
    problem = small_problem()
    weights = random_weights(problem, dtype=torch.float32)
    x, ids, scales = batch(problem)
    expected = reference_moe(problem, x, weights, ids, scales)
    ids[1], x[1], scales[1] = foreign, torch.nan, torch.nan
    actual = reference_moe(problem, x, weights, ids, scales)
    assert actual[1].tolist() == [0.0] * 64
    assert_close(actual[[0, 2, 3, 4]], expected[[0, 2, 3, 4]], 1e-6)


def test_the_router_weight_may_apply_to_the_input():
    problem = small_problem(top_k=1, apply_router_weight_on_input=True)
    weights = random_weights(problem, dtype=torch.float32)
    x, ids, scales = batch(problem)
    ones = torch.ones_like(scales)
    assert_bitwise_equal(
        reference_moe(problem, x, weights, ids, scales), reference_moe(problem, x * scales, weights, ids, ones)
    )


def test_no_tokens():
    problem = small_problem()
    x, ids, scales = batch(problem, tokens=0)
    assert reference_moe(problem, x, random_weights(problem), ids, scales).shape == (0, 64)


@pytest.mark.parametrize("quant", ["FP8_BLOCK_SCALES", "NVFP4", "W4A16_AWQ"])
def test_quantized_experts_are_the_dequantized_ones(quant):
    problem = small_problem(quant=quant, hidden_size=128, intermediate_size=128, bias=True)
    weights = random_weights(problem, dtype=torch.float32)
    matrices = {name: dequantized(m, torch.float32) for name, m in weights.given().items() if name.startswith("w")}
    plain = replace(weights, **matrices)
    x, ids, scales = batch(problem)
    assert_bitwise_equal(reference_moe(problem, x, weights, ids, scales), reference_moe(problem, x, plain, ids, scales))
