"""Budgets, rounds and the host's clock; graph replays where there is a GPU."""

import time

import pytest
import torch

from moe_core.measure.results import Mode
from moe_core.measure.timing import MOST_CALLS, Budget, Replay, time_calls, time_replays


def test_budget():
    budget = Budget(0.25, least=5, most=50)
    assert [budget.rounds(seconds) for seconds in (1, 0.025, 1e-6, 0)] == [5, 10, 50, 50]
    assert [budget.calls(seconds) for seconds in (1, 0.005, 1e-6)] == [2, 5, MOST_CALLS]


def test_calls_take_turns():
    seen = []
    calls = {name: (lambda index, name=name: seen.append((name, index)), 2) for name in "ab"}
    times = time_calls(calls, torch.device("cpu"), Budget(0, least=2, most=2))
    one_round = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert seen == one_round * 3, "once to see how long it takes, then twice in turns"
    assert {timing.rounds for timing in times.values()} == {2}


def test_time_is_of_one_call():
    timing = time_calls({0: (lambda index: time.sleep(0.002), 3)}, torch.device("cpu"), Budget(0, least=3))[0]
    assert timing.mode is Mode.EAGER
    assert 2000 <= timing.p10 <= timing.median <= timing.p90


def test_nobody_takes_no_time():
    assert time_calls({}, torch.device("cpu"), Budget()) == {}
    assert time_replays({}, Budget()) == {}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_replays_agree_with_the_arithmetic():
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    pool = torch.cuda.graph_pool_handle()
    replays = {n: Replay(lambda index, n=n: torch.stack([a @ a for _ in range(n)]), 4, pool) for n in (1, 4)}
    times = time_replays(replays, Budget(0.05))
    assert times[1].mode is Mode.GRAPH
    assert 2 < times[4].median / times[1].median < 6
