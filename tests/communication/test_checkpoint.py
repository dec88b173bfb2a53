"""Strategies sleep and wake on all ranks or on none, each workspace once; whatever is in doubt stays unused."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from moe_core.communication import Communication
from moe_core.communication.base import Phase
from moe_core.communication.checkpoint import Checkpointable, GroupComm, SleepCoordinator, State
from moe_core.contract.catalog import Catalog
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.vocabulary import Device
from moe_core.execution import TORCH_DTYPE, ParallelGroups
from moe_core.layer import ConfigurableMoE
from moe_core.resolve import resolve_moe_impl
from moe_core.testing.numerics import assert_bitwise_equal
from moe_core.testing.problems import small_problem
from moe_core.testing.ranks import run_on_ranks
from moe_core.testing.weights import random_weights
from moe_plugins import comm_none, vanilla


class Mailbox:
    """What threads that play ranks tell each other."""

    def __init__(self, num_ranks):
        self.values, self.meeting = [None] * num_ranks, threading.Barrier(num_ranks, timeout=10)


class ThreadComm:
    def __init__(self, rank, mailbox):
        self.rank, self.mailbox, self.num_gathers = rank, mailbox, 0

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return len(self.mailbox.values)

    def allgather(self, sendobj):
        self.num_gathers += 1
        self.mailbox.values[self.rank] = sendobj
        self.barrier()
        answers = list(self.mailbox.values)
        self.barrier()
        return answers

    def barrier(self):
        self.mailbox.meeting.wait()


class Workspace:
    """Memory that several strategies share; `refuses` names the step that fails."""

    def __init__(self, refuses=None):
        self.refuses, self.done = refuses, []

    def do(self, step):
        if step == self.refuses:
            raise OSError(f"no {step} here")
        self.done.append(step)


class Plain(Communication):
    """A strategy with nothing to give back."""

    def __init__(self):
        capabilities = SimpleNamespace(supports_graph_padding_trim=False)
        super().__init__(SimpleNamespace(groups=ParallelGroups(), candidate=SimpleNamespace(capabilities=capabilities)))

    def _dispatch(self, rows, all_rank_num_tokens):
        return rows

    def _combine(self, y):
        return y


class Holder(Plain):
    """A strategy over a workspace."""

    def __init__(self, workspace):
        super().__init__()
        self.workspace = workspace

    def checkpoint_resource_key(self):
        return id(self.workspace)

    def checkpoint_prepare(self):
        self.workspace.do("prepare")

    def checkpoint_restore(self, comm=None):
        comm.barrier()
        self.workspace.do("restore")


def dispatch(strategy):
    strategy.dispatch(torch.ones(1, 1), None, torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, 1), (1,))


def on_threads(num_ranks, play):
    mailbox = Mailbox(num_ranks)
    with ThreadPoolExecutor(num_ranks) as pool:
        return list(pool.map(lambda rank: play(ThreadComm(rank, mailbox)), range(num_ranks)))


def message_of(step):
    with pytest.raises(RuntimeError) as caught:
        step()
    return str(caught.value)


def test_the_protocol_is_told_from_the_methods():
    assert isinstance(Holder(Workspace()), Checkpointable)
    assert not isinstance(Plain(), Checkpointable)


def test_each_workspace_sleeps_and_wakes_once_whoever_shares_it():
    def play(comm):
        shared, own = Workspace(), Workspace()
        strategies = [Holder(shared), Holder(own), Plain(), Holder(shared)]
        coordinator = SleepCoordinator(strategies, comm)
        for _ in range(2):
            coordinator.sleep()
        assert coordinator.state is State.ASLEEP
        assert [s.phase for s in strategies] == [Phase.ASLEEP] * 4
        assert (shared.done, own.done) == (["prepare"], ["prepare"])
        assert "cannot dispatch while Plain is asleep: it must be idle" in message_of(lambda: dispatch(strategies[2]))
        assert "cannot combine while Holder is asleep" in message_of(lambda: strategies[0].combine(torch.ones(1, 1)))
        for _ in range(2):
            coordinator.wake()
        assert coordinator.state is State.AWAKE
        for strategy in strategies:
            dispatch(strategy)
        return shared.done + own.done

    assert on_threads(2, play) == [["prepare", "restore"] * 2] * 2


def test_a_busy_rank_keeps_all_awake_and_is_named():
    def play(comm):
        strategy = Holder(Workspace())
        coordinator = SleepCoordinator([strategy], comm)
        if comm.rank == 1:
            dispatch(strategy)
        message = message_of(coordinator.sleep)
        assert (coordinator.state, strategy.workspace.done) == (State.AWAKE, [])
        strategy.reset()
        coordinator.sleep()
        assert strategy.workspace.done == ["prepare"]
        return message

    expected = "cannot sleep: rank 1 did not end a dispatch; combine, or reset, and try again"
    assert on_threads(3, play) == [expected] * 3


@pytest.mark.parametrize(("refused", "step"), [("prepare", "sleep"), ("restore", "wake")])
def test_a_step_that_fails_on_one_rank_leaves_all_unusable(refused, step):
    def play(comm):
        strategy = Holder(Workspace(refuses=refused if comm.rank == 0 else None))
        coordinator = SleepCoordinator([strategy], comm)
        if step == "wake":
            coordinator.sleep()
        with pytest.raises(RuntimeError, match=f"^cannot {step}: rank 0 failed; destroy") as caught:
            getattr(coordinator, step)()
        assert isinstance(caught.value.__cause__, OSError) is (comm.rank == 0)
        assert coordinator.state is State.BROKEN
        for again in (coordinator.sleep, coordinator.wake):
            assert message_of(again).startswith("an earlier sleep or wake failed")
        assert "is asleep" in message_of(lambda: dispatch(strategy))
        strategy.destroy()
        return strategy.phase

    assert on_threads(2, play) == [Phase.DESTROYED] * 2


class Silent(ThreadComm):
    def allgather(self, sendobj):
        raise TimeoutError("nobody answers")


class Confused(ThreadComm):
    def allgather(self, sendobj):
        return [sendobj]


@pytest.mark.parametrize(
    ("comm", "error"), [(Silent, "nobody answers"), (Confused, "asked 2 ranks whether to go on, found 1 answers")]
)
def test_without_an_agreement_nothing_is_detached_and_nothing_used(comm, error):
    strategy = Holder(Workspace())
    coordinator = SleepCoordinator([strategy], comm(0, Mailbox(2)))
    with pytest.raises((TimeoutError, RuntimeError), match=error):
        coordinator.sleep()
    assert (coordinator.state, strategy.workspace.done) == (State.BROKEN, [])
    assert "is asleep" in message_of(lambda: dispatch(strategy))


def test_another_communicator_wakes_only_at_the_same_place():
    def play(comm):
        strategy = Holder(Workspace())
        coordinator = SleepCoordinator([strategy], comm)
        coordinator.sleep()
        elsewhere = ThreadComm(1 - comm.rank, comm.mailbox)
        message = message_of(lambda: coordinator.wake(elsewhere))
        assert message.startswith(
            f"cannot wake as rank {1 - comm.rank} of 2: workspaces were made for rank {comm.rank}"
        )
        fresh = ThreadComm(comm.rank, comm.mailbox)
        coordinator.wake(fresh)
        asked = comm.num_gathers
        coordinator.sleep()
        return comm.num_gathers - asked, strategy.workspace.done

    assert on_threads(2, play) == [(0, ["prepare", "restore", "prepare"])] * 2


def test_a_layer_whose_strategies_sleep_refuses_forwards():
    problem = small_problem()
    catalog = Catalog.of((*comm_none.CANDIDATES, *vanilla.CANDIDATES))
    environment = MoEEnvironment(device=Device.CPU).with_packages(torch="2.13.0")
    report = resolve_moe_impl(problem, MoEDeployment(environment=environment), candidates=catalog)
    dtype = TORCH_DTYPE[problem.dtype_act]
    layer = ConfigurableMoE.from_report(report, random_weights(problem, dtype=dtype), catalog=catalog)
    x, logits = torch.ones(2, problem.hidden_size, dtype=dtype), torch.zeros(2, problem.num_experts)
    coordinator = SleepCoordinator(layer.strategies, ThreadComm(0, Mailbox(1)))
    before = layer(x, logits)
    coordinator.sleep()
    assert "is asleep" in message_of(lambda: layer(x, logits))
    coordinator.wake()
    assert_bitwise_equal(layer(x, logits), before)


def sleeping_on_real_ranks(rank):
    comm = GroupComm(dist.group.WORLD)
    assert (comm.Get_rank(), comm.Get_size(), comm.allgather(rank)) == (rank, 2, [0, 1])
    strategy = Holder(Workspace())
    coordinator = SleepCoordinator([strategy, Holder(strategy.workspace)], comm)
    if rank == 1:
        dispatch(strategy)
    assert message_of(coordinator.sleep).startswith("cannot sleep: rank 1 did not end a dispatch")
    strategy.reset()
    coordinator.sleep()
    assert "is asleep" in message_of(lambda: dispatch(strategy))
    coordinator.wake()
    dispatch(strategy)
    assert strategy.workspace.done == ["prepare", "restore"]


@pytest.mark.dist
def test_on_two_ranks():
    run_on_ranks(2, sleeping_on_real_ranks)
