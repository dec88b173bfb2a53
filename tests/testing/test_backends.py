"""Each check of a backend catches the cheat that it is for, and lets an honest backend pass."""

import pytest
from kit_examples.honest import declaration

from moe_core.contract.candidate import MoEStaticCapability
from moe_core.contract.declare import need
from moe_core.contract.predicate import Equals
from moe_core.contract.reasons import MoERejectReason as Reason
from moe_core.testing.backends import (
    CHECKS,
    BackendTrial,
    UntriedError,
    assert_gradients_match_twin,
    assert_matches_twin,
    assert_ranks_add_up,
)
from moe_core.testing.problems import small_problem

ANY_NUMBER = {"matches_twin", "takes_skew", "foreign_ids_add_zero", "ranks_add_up", "repeats_bitwise"}
CAUGHT_BY = {
    "Twin": set(),
    "OnePercentOff": ANY_NUMBER,
    "ForgetsTheLastRow": ANY_NUMBER,
    "WrongElementType": {"matches_twin"},
    "NeedsTokens": {"matches_twin"},
    "SingleExpertCapacity": {"takes_skew"},
    "LeaksForeignRows": {"foreign_ids_add_zero"},
    "ForgetsItsRank": {"ranks_add_up"},
    "Trembles": {"repeats_bitwise"},
    "LoadsOnce": {"repeats_bitwise"},
    "WritesToItsInput": {"leaves_inputs_alone"} | ANY_NUMBER - {"foreign_ids_add_zero"},
}


def trial_of(backend, **changes):
    return BackendTrial(declaration("tried", factory=f"kit_examples.backends:{backend}", **changes), small_problem())


def failed_checks(trial):
    failed = set()
    for check in CHECKS:
        try:
            check(trial)
        except AssertionError:
            failed.add(check.__name__.removeprefix("assert_"))
    return failed


@pytest.mark.parametrize("backend", CAUGHT_BY)
def test_cheats_are_caught_by_the_checks_that_are_meant_to(backend):
    assert failed_checks(trial_of(backend)) == CAUGHT_BY[backend]


@pytest.mark.parametrize(
    ("backend", "admitted"), [("Trembles", {"deterministic": False}), ("LoadsOnce", {"reloadable": False})]
)
def test_what_a_candidate_admits_is_no_cheat(backend, admitted):
    assert (
        failed_checks(trial_of(backend, capabilities=MoEStaticCapability(supports_cuda_graph=False, **admitted)))
        == set()
    )


def test_a_claim_of_cuda_graphs_that_the_host_must_wait_for_is_caught():
    assert failed_checks(trial_of("Twin", capabilities=MoEStaticCapability())) == {"needs_no_host_sync"}


def test_gradients_that_are_lost_are_caught():
    assert_gradients_match_twin(trial_of("Twin"))
    with pytest.raises(AssertionError, match="gradients of"):
        assert_gradients_match_twin(trial_of("Detached"))


def test_a_candidate_without_a_tolerance_cannot_be_tried():
    with pytest.raises(AssertionError, match="declares no tolerance"):
        assert_matches_twin(trial_of("Twin", tolerance=None))


def test_a_problem_that_cannot_be_split_is_no_proof():
    alone = need(Reason.TOPOLOGY_UNSUPPORTED, "world_size", Equals(value=1))
    with pytest.raises(UntriedError, match="choose sizes that it can split"):
        assert_ranks_add_up(trial_of("ForgetsItsRank", requirements=(alone,)))
