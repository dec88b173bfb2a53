"""The conformance kit catches backends that break a promise."""

import pytest
import torch

from moe_core.execution import MoERunContext
from moe_core.testing.backends import (
    BackendTrial,
    assert_foreign_ids_add_zero,
    assert_gradients_match_twin,
    assert_leaves_inputs_alone,
    assert_matches_twin,
    assert_ranks_add_up,
    assert_repeats_bitwise,
    assert_takes_skew,
)
from moe_core.testing.problems import small_problem
from moe_plugins.vanilla import CANDIDATES
from moe_plugins.vanilla.backend import ReferenceLoop

(VANILLA,) = CANDIDATES


class Broken(BackendTrial):
    """A trial of the reference loop with its answers, or its contexts, spoiled."""

    def bind(self, *arguments, **keywords):
        backend = super().bind(*arguments, **keywords)
        original = backend.run_moe
        backend.run_moe = lambda context: self.spoil(original, context)
        return backend


class Inaccurate(Broken):
    def spoil(self, run, context):
        return run(context) * 1.02


class Unwritten(Broken):
    def spoil(self, run, context):
        y = torch.empty_like(context.x)
        y[1:] = run(context)[1:]
        return y


class WrongElementType(Broken):
    def spoil(self, run, context):
        return run(context).float()


class DropsRowsOfFullExperts(Broken):
    def spoil(self, run, context):
        y = run(context)
        y[48:] = 0
        return y


class MultipliesByZero(Broken):
    def spoil(self, run, context):
        return run(context) + 0 * context.x


class WritesToInput(Broken):
    def spoil(self, run, context):
        y = run(context)
        context.x.mul_(2)
        return y


class Unsteady(Broken):
    calls = 0

    def spoil(self, run, context):
        type(self).calls += 1
        return run(context) * (1 + type(self).calls / 100)


class IgnoresSlotRange(BackendTrial):
    def bind(self, deployment=None, groups=None, weights=None):
        return super().bind(None, None, weights)


class Detached(Broken):
    def spoil(self, run, context):
        return run(MoERunContext(context.x, context.token_selected_slots, context.token_final_scales.detach()))


@pytest.mark.parametrize(
    ("trial", "check"),
    [
        (Inaccurate, assert_matches_twin),
        (Unwritten, assert_matches_twin),
        (WrongElementType, assert_matches_twin),
        (DropsRowsOfFullExperts, assert_takes_skew),
        (MultipliesByZero, assert_foreign_ids_add_zero),
        (WritesToInput, assert_leaves_inputs_alone),
        (Unsteady, assert_repeats_bitwise),
        (IgnoresSlotRange, assert_ranks_add_up),
        (Detached, assert_gradients_match_twin),
    ],
)
def test_a_broken_promise_is_caught(trial, check):
    with pytest.raises(AssertionError):
        check(trial(VANILLA, small_problem()))


def test_a_candidate_without_a_tolerance_cannot_be_tried():
    with pytest.raises(AssertionError, match="declares no tolerance"):
        assert_matches_twin(BackendTrial(VANILLA.evolve(tolerance=None), small_problem()))


def test_a_problem_that_cannot_be_split_is_no_proof():
    even = VANILLA.evolve(capabilities=VANILLA.capabilities.evolve(supports_uneven_tp=False))
    single = BackendTrial(even, small_problem(num_experts=1, top_k=1, intermediate_size=1))
    with pytest.raises(AssertionError, match="choose sizes that it can split"):
        assert_ranks_add_up(single)


def test_the_reference_loop_is_what_is_tried():
    assert isinstance(BackendTrial(VANILLA, small_problem()).bind(), ReferenceLoop)
