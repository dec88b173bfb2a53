"""The comparisons of the kit can fail, and say by how much."""

import pytest
import torch

from moe_core.contract.candidate import MoEActivationSupport, MoECandidate
from moe_core.testing.numerics import (
    assert_bitwise_equal,
    assert_close,
    poisoned_memory,
    relative_error,
    tolerance_in,
    tolerance_of,
)


def test_relative_error_is_frobenius():
    assert relative_error(torch.tensor([3.0, 0.0]), torch.tensor([3.0, 4.0])) == pytest.approx(0.8)
    assert relative_error(torch.tensor([3.0, 4.0]), torch.zeros(2)) == 5.0
    assert relative_error(torch.zeros(0), torch.zeros(0)) == 0.0


@pytest.mark.parametrize(
    ("actual", "message"),
    [
        (torch.ones(2, 3), "shape"),
        (torch.tensor([1.0, torch.nan]), r"1 NaN, the first at \[1\]"),
        (torch.tensor([1.0, 1.1]), "relative Frobenius error 0.0707, tolerance 0.05"),
    ],
)
def test_what_is_not_close(actual, message):
    with pytest.raises(AssertionError, match=message):
        assert_close(actual, torch.ones(2), 0.05)


@pytest.mark.parametrize("other", [torch.tensor([1.0, 2.0000002]), torch.ones(3), torch.ones(2, dtype=torch.float16)])
def test_what_is_not_equal_in_bits(other):
    with pytest.raises(AssertionError):
        assert_bitwise_equal(other, torch.tensor([1.0, 2.0]))


def test_bits_of_nan_are_equal_and_those_of_the_zeros_are_not():
    assert_bitwise_equal(torch.tensor([torch.nan]), torch.tensor([torch.nan]))
    with pytest.raises(AssertionError, match="1 bytes differ"):
        assert_bitwise_equal(torch.tensor([0.0]), torch.tensor([-0.0]))


def test_a_tolerance_follows_the_element_type_and_never_goes_below_float32():
    assert tolerance_in(torch.bfloat16, 8e-3) == 8e-3
    assert tolerance_in(torch.float16, 8e-3) == 1e-3
    assert tolerance_in(torch.float32, 8e-3) == 1e-6


def test_a_candidate_that_quantizes_activations_has_one_tolerance():
    fields = {"kind": "backend", "family": "TEST", "title": "", "activation": MoEActivationSupport(kinds=())}
    candidate = MoECandidate(identity="test.torch.numbers.fp8", **fields)
    assert tolerance_of(candidate, torch.float16) is None
    assert tolerance_of(candidate.evolve(tolerance=8e-3), torch.float16) == 1e-3
    assert tolerance_of(candidate.evolve(tolerance=6e-2, quantizes_activations=True), torch.float16) == 6e-2


def test_poisoned_memory_is_not_a_number_and_ends():
    with poisoned_memory():
        assert torch.empty(1000).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()
