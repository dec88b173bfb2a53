"""Activations by worked numbers, and what may not be said."""

import math

import pytest
import torch

from moe_core.activation import Activation, materialize
from moe_core.contract.candidate import MoEActivationSupport
from moe_core.contract.problem import ActivationConstant, MoEProblem
from moe_core.contract.vocabulary import ActivationType as Kind
from moe_core.testing.numerics import assert_bitwise_equal, assert_close

GPT_OSS = Activation(Kind.SWIGLU_BIAS, alpha=1.702, beta=1.0, clamp=7.0)
CPU = torch.device("cpu")


def value(activation, gate, up=None):
    halves = [torch.tensor([x], dtype=torch.float64) for x in (gate, up) if x is not None]
    return activation(*halves).item()


@pytest.mark.parametrize(
    ("gate", "up", "gpt_oss", "gpt_oss_unclamped", "swiglu"),
    [
        (1.0, 1.0, 1.691592, 1.691592, 0.731059),
        (10.0, 2.0, 20.999859, 29.999999, 19.999092),
        (3.0, -9.0, -17.891572, -23.85543, -25.719501),
    ],
)
def test_gated_values(gate, up, gpt_oss, gpt_oss_unclamped, swiglu):
    unclamped = Activation(Kind.SWIGLU_BIAS, alpha=1.702, beta=1.0)
    assert value(GPT_OSS, gate, up) == pytest.approx(gpt_oss, abs=1e-6)
    assert value(unclamped, gate, up) == pytest.approx(gpt_oss_unclamped, abs=1e-6)
    assert value(Activation(Kind.SWIGLU), gate, up) == pytest.approx(swiglu, abs=1e-6)


def test_swiglu_bias_with_neutral_constants_is_swiglu():
    gate, up = torch.randn(2, 50)
    assert_close(Activation(Kind.SWIGLU_BIAS, alpha=1.0, beta=0.0)(gate, up), Activation(Kind.SWIGLU)(gate, up), 1e-6)


def test_the_gate_is_clamped_from_above_only_and_the_up_half_on_both_sides():
    clamped = Activation(Kind.SWIGLU, clamp=2.0)
    assert value(clamped, 9.0, 9.0) == pytest.approx(value(Activation(Kind.SWIGLU), 2.0, 2.0))
    assert value(clamped, -9.0, -9.0) == pytest.approx(value(Activation(Kind.SWIGLU), -9.0, -2.0))


def test_a_clamp_after_silu_limits_what_silu_gives():
    after = Activation(Kind.SWIGLU, clamp=2.0, clamp_after_silu=True)
    assert value(after, 9.0, 9.0) == pytest.approx(2.0 * 2.0)
    assert value(after, 1.0, -9.0) == pytest.approx(-2.0 / (1 + math.exp(-1.0)))


def test_situ_caps_softly_and_its_sigmoid_sees_the_bare_gate():
    situ = Activation(Kind.SITU, alpha=4.0, beta=3.0)
    expected = 4.0 * math.tanh(6.0 / 4.0) / (1 + math.exp(-6.0)) * 3.0 * math.tanh(-5.0 / 3.0)
    assert value(situ, 6.0, -5.0) == pytest.approx(expected)


def test_plain_kinds():
    def erf_gelu(x):
        return x / 2 * (1 + math.erf(x / math.sqrt(2)))

    def tanh_gelu(x):
        return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    for x in (-1.5, 0.75):
        assert value(Activation(Kind.IDENTITY), x) == x
        assert value(Activation(Kind.RELU), x) == max(x, 0.0)
        assert value(Activation(Kind.RELU2), x) == max(x, 0.0) ** 2
        assert value(Activation(Kind.SILU), x) == pytest.approx(x / (1 + math.exp(-x)))
        assert value(Activation(Kind.GELU), x) == pytest.approx(erf_gelu(x))
        assert value(Activation(Kind.GEGLU), x, 3.0) == pytest.approx(3 * erf_gelu(x))
        assert value(Activation(Kind.GEGLU_TANH), x, 3.0) == pytest.approx(3 * tanh_gelu(x))


def test_inputs_are_not_written_to():
    gate, up = torch.full((2, 3), 9.0)
    GPT_OSS(gate, up)
    assert_bitwise_equal(gate, torch.full((3,), 9.0))
    assert_bitwise_equal(up, torch.full((3,), 9.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_element_type_stays(dtype):
    assert GPT_OSS(torch.ones(2, dtype=dtype), torch.ones(2, dtype=dtype)).dtype is dtype


@pytest.mark.parametrize(("kind", "halves"), [(Kind.SWIGLU, 1), (Kind.RELU2, 2)])
def test_the_up_half_is_there_exactly_when_the_kind_is_gated(kind, halves):
    with pytest.raises(ValueError, match="gated"):
        Activation(kind)(*torch.ones(halves, 3))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": Kind.SWIGLU, "clamp": 0.0}, "clamp must be > 0, got 0.0"),
        ({"kind": Kind.SWIGLU, "clamp": math.nan}, "clamp must be > 0, got nan"),
        ({"kind": Kind.SWIGLU, "alpha": 1.0}, "Swiglu takes no alpha"),
        ({"kind": Kind.RELU2, "clamp": 1.0}, "Relu2 takes no clamp"),
        ({"kind": Kind.SWIGLU_BIAS}, "SwigluBias needs alpha; SwigluBias needs beta"),
        ({"kind": Kind.SITU, "alpha": 1.0}, "SiTu needs beta"),
        ({"kind": Kind.SITU, "alpha": 1.0, "beta": 0.0}, "beta must be > 0"),
        ({"kind": Kind.SITU, "alpha": 1.0, "beta": 1.0, "clamp": 1.0}, "SiTu takes no clamp"),
        ({"kind": Kind.SWIGLU, "clamp_after_silu": True}, "clamp_after_silu needs Swiglu with a clamp"),
        ({"kind": Kind.GEGLU, "clamp_after_silu": True}, "clamp_after_silu needs Swiglu with a clamp"),
    ],
)
def test_kind_and_constants_cannot_disagree(fields, message):
    with pytest.raises(ValueError, match=message):
        Activation(**fields)


def test_of_a_problem():
    constants = tuple(ActivationConstant(name=n, value=v) for n, v in (("alpha", 1.702), ("beta", 1.0), ("clamp", 7.0)))
    problem = MoEProblem(activation=Kind.SWIGLU_BIAS, activation_constants=constants)
    assert Activation.of(problem) == GPT_OSS


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"activation": None}, "unknown"),
        ({"activation_constants": None}, "unknown"),
        ({"activation_constants": (ActivationConstant(name="clamp"),)}, "the value of clamp is unknown"),
    ],
)
def test_an_unknown_activation_cannot_be_computed(fields, message):
    with pytest.raises(ValueError, match=message):
        Activation.of(MoEProblem(**fields))


def test_registers_of_a_kernel_that_takes_scalars():
    support = MoEActivationSupport(kinds=(Kind.SWIGLU_BIAS,), constants=("alpha", "beta", "clamp"))
    assert materialize(GPT_OSS, support, 4, CPU) == (Kind.SWIGLU_BIAS, 1.702, 1.0, 7.0)


def test_registers_of_a_kernel_that_takes_one_value_per_expert():
    support = MoEActivationSupport(kinds=(Kind.SWIGLU,), constants=("clamp",), per_expert=True, clamp_when_absent=1e30)
    kind, alpha, beta, clamp = materialize(Activation(Kind.SWIGLU), support, 4, CPU)
    assert (kind, alpha, beta) == (Kind.SWIGLU, None, None)
    assert_bitwise_equal(clamp, torch.full((4,), 1e30))


def test_nothing_that_a_kernel_does_not_execute_is_dropped():
    support = MoEActivationSupport(kinds=(Kind.RELU2, Kind.GEGLU))
    after = Activation(Kind.SWIGLU, clamp=2.0, clamp_after_silu=True)
    with pytest.raises(ValueError, match=r"Swiglu; supported are Geglu, Relu2; constant clamp; clamp_after_silu"):
        materialize(after, support, 4, CPU)
