"""A rank that does not come to a collective is named by those that waited for it, within their budget."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from moe_core.communication import Communication
from moe_core.communication.late import LateRankError, RankWatch
from moe_core.execution import ParallelGroups

PATIENCE = timedelta(seconds=0.5)
BUDGET = timedelta(seconds=3)
RESET = RuntimeError("connection reset")


def watches(num_ranks=3, store=None, patience=timedelta(seconds=0.05)):
    store = store or dist.HashStore()
    return [RankWatch(store, rank, num_ranks, patience=patience) for rank in range(num_ranks)]


def enter(watch, times):
    for _ in range(times):
        watch.enter("dispatch")


def explained(found, errors):
    """What each of some ranks makes of its own error, all at once."""
    with ThreadPoolExecutor(len(errors)) as pool:
        return list(pool.map(lambda watch, error: watch.explain(error), found, errors))


def test_a_rank_that_did_not_come_is_named():
    found = watches()
    for watch, times in zip(found, (5, 5, 4), strict=True):
        enter(watch, times)
    error = found[0].explain(RESET)
    assert isinstance(error, LateRankError)
    assert (error.ranks, found[0].late_ranks(), found[2].late_ranks()) == ((2,), (2,), ())
    assert str(error) == (
        "dispatch failed on rank 0: rank 2 did not come to it within 0.05 s of that (it is the collective number 5; "
        "see what became of rank 2); the failure: connection reset"
    )


def test_ranks_that_never_entered_anything_are_named():
    found = watches(4)
    enter(found[3], 1)
    assert found[3].explain(RESET).ranks == (0, 1, 2)


def test_a_rank_that_neither_left_nor_failed_is_named_when_all_came():
    found = watches()
    for watch in found:
        enter(watch, 2)
    # The last one is gone; the first is through, and in the next collective.
    enter(found[0], 1)
    error = found[1].explain(RESET)
    assert error.ranks == (2,)
    assert "rank 2 came to it, and neither left it nor failed within 0.05 s" in str(error)


def test_a_failure_that_all_share_stays_what_it_is_and_costs_no_patience():
    found, errors = watches(patience=timedelta(seconds=20)), [RuntimeError("alike") for _ in range(3)]
    for watch in found:
        enter(watch, 1)
    start = time.monotonic()
    assert explained(found, errors) == errors
    assert time.monotonic() - start < 10


def test_a_rank_that_is_only_behind_is_waited_for():
    found = watches(2, patience=timedelta(seconds=20))
    enter(found[0], 1)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(found[0].explain, RESET)
        time.sleep(0.05)
        assert not answer.done()
        enter(found[1], 2)
        assert answer.result(timeout=10) is RESET


@pytest.mark.parametrize("error", [ValueError("no counts"), LateRankError("known", [1])])
def test_errors_that_no_rank_causes_pass_through(error):
    [first, _] = watches(2)
    enter(first, 1)
    assert first.explain(error) is error


def test_watches_of_one_store_do_not_mix():
    store = dist.HashStore()
    first, second = watches(2, store), watches(2, store)
    enter(first[1], 3)
    enter(second[0], 1)
    assert (second[0].late_ranks(), second[1].late_ranks(), first[1].late_ranks()) == ((1,), (), (0,))


def test_a_lost_store_fails_nothing_and_is_said():
    server = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    watch = RankWatch(dist.TCPStore("localhost", server.port), 0, 2)
    del server
    error = RuntimeError("connection reset")
    for _ in range(2):
        watch.enter("dispatch")
        assert watch.explain(error) is error
    assert "who is late cannot be told: the store that ranks count in does not answer" in error.__notes__[0]


class Sum(Communication):
    """All ranks' rows in sum."""

    def _dispatch(self, rows, all_rank_num_tokens):
        dist.all_reduce(rows.x, group=self.groups.group)
        return rows

    def _combine(self, y):
        return y


def rank_of_three(rank, folder, ending):
    """The last rank ends in one way or another between two dispatches; the others write what they are told."""
    store = dist.FileStore(os.path.join(folder, "store"), 3)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3, timeout=BUDGET)
    groups = ParallelGroups(rank=rank, group=dist.group.WORLD, watch=RankWatch.of(dist.group.WORLD, patience=PATIENCE))
    candidate = SimpleNamespace(capabilities=SimpleNamespace(supports_graph_padding_trim=False))
    strategy = Sum(SimpleNamespace(groups=groups, candidate=candidate))

    def dispatch():
        rows = strategy.dispatch(torch.ones(1), None, torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, 1), (1, 1, 1))
        strategy.combine(rows.x)

    dispatch()
    if rank == 2:
        if ending == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    start = time.monotonic()
    try:
        dispatch()
    except LateRankError as error:
        is_in_time = time.monotonic() - start < (BUDGET + PATIENCE).total_seconds() + 2
        sys.stdout.write(f"{error.ranks} {is_in_time} {error}")
        sys.stdout.flush()
    # Leaving quietly would wait for the group.
    os._exit(0)


@pytest.mark.dist
@pytest.mark.parametrize("ending", ["killed", "stalled"])
def test_a_rank_that_ends_is_named_by_the_others(ending, tmp_path):
    commands = [[sys.executable, __file__, str(rank), str(tmp_path), ending] for rank in range(3)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, **pipes) for command in commands]
    try:
        for process in started[:2]:
            output, errors = process.communicate(timeout=60)
            assert output.startswith("(2,) True dispatch failed on rank "), output + errors
            assert "rank 2 did not come to it" in output
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert started[2].returncode == -signal.SIGKILL


if __name__ == "__main__":
    rank_of_three(int(sys.argv[1]), *sys.argv[2:])
