"""Budgets, rounds and the host's clock; graph replays where there is a GPU."""

import time
from types import SimpleNamespace

import pytest
import torch

from moe_core.measure import timing
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


class Clock:
    """A device on which replays take what they are told to."""

    def __init__(self, monkeypatch):
        self.now, self.rests, self.replayed = 0.0, 0, []
        monkeypatch.setattr(timing, "_event", lambda: Event(self))
        monkeypatch.setattr(timing.time, "sleep", self.sleep)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def sleep(self, seconds):
        self.rests += 1

    def replay(self, name, seconds):
        def replay():
            self.now += seconds
            self.replayed.append(name)

        return SimpleNamespace(graph=SimpleNamespace(replay=replay), calls=2)


class Event:
    def __init__(self, clock):
        self.clock = clock

    def record(self):
        self.at = self.clock.now

    def synchronize(self):
        pass

    def elapsed_time(self, later):
        return (later.at - self.at) * 1e3


@pytest.mark.parametrize("rest", [0.0, 0.001])
def test_long_replays_rest_and_are_woken_by_a_short_one(monkeypatch, rest):
    clock = Clock(monkeypatch)
    replays = {"short": clock.replay("short", 4e-4), "long": clock.replay("long", 3e-3)}
    times = time_replays(replays, Budget(0.004, rest=rest))
    assert times["short"].median == pytest.approx(200)
    assert times["long"].median == pytest.approx(1500)
    assert clock.rests == (times["long"].rounds if rest else 0)
    if rest:
        last = len(clock.replayed) - 1 - clock.replayed[::-1].index("long")
        assert clock.replayed[last - 1] == "short"
