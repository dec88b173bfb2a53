"""Dispatch and combine alternate; destroy is final and may be repeated."""

import pytest
import torch

from moe_core.communication import Communication
from moe_core.communication.base import Phase
from moe_core.contract.candidate import MoECandidate
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.vocabulary import CandidateKind
from moe_core.execution import Binding
from moe_core.testing.problems import small_problem

CANDIDATE = MoECandidate(identity="a.b.c.any", kind=CandidateKind.COMMUNICATION, family="NONE", title="a stub")


class Stub(Communication):
    released = 0

    def _dispatch(self, rows, all_rank_num_tokens):
        if not all_rank_num_tokens:
            raise ValueError("no counts")
        return rows

    def _combine(self, y):
        if y.isnan().any():
            raise ValueError("broken")
        return y

    def _release(self):
        self.released += 1


@pytest.fixture
def stub():
    return Stub(Binding(CANDIDATE, small_problem(), MoEDeployment(), torch.device("cpu"), torch.float32))


def dispatch(stub, counts=(2,)):
    return stub.dispatch(torch.zeros(2, 4), None, torch.zeros(2, 1, dtype=torch.int32), torch.ones(2, 1), counts)


def test_dispatch_and_combine_alternate(stub):
    for _ in range(2):
        assert stub.phase is Phase.IDLE
        dispatch(stub)
        assert stub.phase is Phase.DISPATCHED
        stub.combine(torch.zeros(2, 4))
    assert stub.phase is Phase.IDLE


def test_out_of_turn_is_an_error(stub):
    with pytest.raises(RuntimeError, match="cannot combine while Stub is idle: it must be dispatched"):
        stub.combine(torch.zeros(2, 4))
    dispatch(stub)
    with pytest.raises(RuntimeError, match="cannot dispatch while Stub is dispatched: it must be idle"):
        dispatch(stub)


def test_a_failure_leaves_it_idle(stub):
    with pytest.raises(ValueError, match="no counts"):
        dispatch(stub, counts=())
    dispatch(stub)
    with pytest.raises(ValueError, match="broken"):
        stub.combine(torch.full((2, 4), torch.nan))
    assert stub.phase is Phase.IDLE


def test_destroy_releases_once_whatever_the_phase(stub):
    dispatch(stub)
    stub.destroy()
    stub.destroy()
    assert stub.released == 1
    with pytest.raises(RuntimeError, match="Stub is destroyed"):
        dispatch(stub)


def test_leaving_the_context_destroys_and_lets_errors_through(stub):
    with pytest.raises(KeyError, match="cause"), stub:
        raise KeyError("cause")
    assert stub.released == 1
