"""Each check of a backend catches the cheat that it is for, and lets an honest backend pass."""

import pytest
from kit_examples.honest import declaration

from moe_core.contract.candidate import MoEStaticCapability
from moe_core.contract.declare import divisible, need
from moe_core.contract.predicate import Equals
from moe_core.contract.reasons import MoERejectReason as Reason
from moe_core.testing.backends import CHECKS, BackendTrial
from moe_core.testing.problems import small_problem

ANY_NUMBER = {"matches_twin", "takes_skew", "foreign_ids_add_zero", "ranks_add_up", "repeats_bitwise"}
CAUGHT_BY = {
    "Twin": set(),
    "OnePercentOff": ANY_NUMBER,
    "ForgetsTheLastRow": ANY_NUMBER,
    "NeedsTokens": {"matches_twin"},
    "SingleExpertCapacity": {"takes_skew"},
    "LeaksForeignRows": {"foreign_ids_add_zero"},
    "ForgetsItsRank": {"ranks_add_up"},
    "Trembles": {"repeats_bitwise"},
    "LoadsOnce": {"repeats_bitwise"},
    "WritesToItsInput": {"leaves_inputs_alone"} | ANY_NUMBER - {"foreign_ids_add_zero"},
}


def failed_checks(candidate):
    failed = set()
    for check in CHECKS:
        try:
            check(BackendTrial(candidate, small_problem()))
        except AssertionError:
            failed.add(check.__name__.removeprefix("assert_"))
    return failed


@pytest.mark.parametrize("backend", CAUGHT_BY)
def test_cheats_are_caught_by_the_checks_that_are_meant_to(backend):
    assert failed_checks(declaration("tried", factory=f"kit_examples.backends:{backend}")) == CAUGHT_BY[backend]


@pytest.mark.parametrize(
    ("backend", "admitted"), [("Trembles", {"deterministic": False}), ("LoadsOnce", {"reloadable": False})]
)
def test_what_a_candidate_admits_is_no_cheat(backend, admitted):
    candidate = declaration("tried", factory=f"kit_examples.backends:{backend}", capabilities=MoEStaticCapability(**admitted))
    assert failed_checks(candidate) == set()


def test_a_backend_for_one_rank_has_nothing_to_add_up():
    alone = need(Reason.TOPOLOGY_UNSUPPORTED, "world_size", Equals(value=1))
    candidate = declaration("tried", factory="kit_examples.backends:ForgetsItsRank", requirements=(alone, divisible("hidden_size")))
    assert failed_checks(candidate) == set()
