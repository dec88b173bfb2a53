"""Experts by torch's grouped multiplication: gradients do not drift with the number of rows."""

import torch

from moe_core.activation import Activation
from moe_core.fused_weights import FusedExpertWeights
from moe_core.grouped import grouped_experts
from moe_core.reference import reference_moe
from moe_core.testing.numerics import assert_bitwise_equal, assert_close
from moe_core.testing.problems import ACTIVATIONS, small_problem
from moe_core.testing.weights import random_weights

PROBLEM = small_problem(num_experts=3, top_k=2, **ACTIVATIONS["swiglu_bias"])
TOLERANCE = 5e-3
"""What kernels promise in bfloat16 that round where this does."""


def leaves(dtype):
    """Inputs and weights that are the same numbers in every element type."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, PROBLEM.hidden_size, generator=generator).bfloat16().to(dtype).requires_grad_()
    scales = torch.rand(2000, 2, generator=generator).requires_grad_()
    weights = random_weights(PROBLEM, dtype=torch.bfloat16)
    return x, scales, weights.map(lambda tensor: tensor.to(dtype, copy=True).requires_grad_())


def chosen():
    return torch.rand(2000, 4, generator=torch.Generator().manual_seed(1)).argsort(dim=-1)[:, :2].int()  # 3 is nobody


def grouped(x, scales, weights, **options):
    return grouped_experts(
        x, chosen(), scales, FusedExpertWeights.joined(weights), Activation.of(PROBLEM), slot_start=0, **options
    )


def gradients(output, x, scales, weights):
    output_grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(2)).bfloat16().to(output.dtype)
    named = {"x": x, "scales": scales, **weights.tensors()}
    return dict(zip(named, torch.autograd.grad(output, list(named.values()), output_grad), strict=True))


def test_sums_over_many_rows_are_taken_in_float32():
    x, scales, weights = leaves(torch.float32)
    expected = gradients(reference_moe(PROBLEM, x, weights, chosen(), scales), x, scales, weights)
    x, scales, weights = leaves(torch.bfloat16)
    actual = gradients(grouped(x, scales, weights, between=torch.float32), x, scales, weights)
    for name, gradient in expected.items():
        assert actual[name].dtype is (torch.float32 if name == "scales" else torch.bfloat16)
        assert_close(actual[name], gradient, TOLERANCE)


def test_what_comes_out_does_not_depend_on_a_graph():
    x, scales, weights = leaves(torch.bfloat16)
    with torch.no_grad():
        expected = grouped(x, scales, weights)
    assert_bitwise_equal(grouped(x, scales, weights), expected)
