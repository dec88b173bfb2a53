"""Times of calls that take turns: CUDA graph replays by device events, or the host's clock where there is no graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from statistics import quantiles
from typing import Any, TypeVar

import torch

from moe_core.measure.results import Mode, Timing

Key = TypeVar("Key")

LONG = 1e-3
"""Seconds of a replay before which a device may rest."""
MOST_CALLS = 16
"""Calls of a round: with more, what it costs to start a graph is hardly less of it."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How long one candidate is measured at one number of tokens."""

    seconds: float = 0.25
    least: int = 5
    """Rounds, however long they take."""
    most: int = 50
    rest: float = 0.0
    """Seconds that the device is left idle before each long replay. It draws less power then than in a row of them, so
    its clock is that of a burst."""

    def rounds(self, seconds: float) -> int:
        """How many rounds that take so long."""
        return min(max(int(self.seconds / max(seconds, 1e-9)), self.least), self.most)

    def calls(self, seconds: float) -> int:
        """How many calls of at least so long make a round, so that the least rounds take about half of the time."""
        return min(max(int(self.seconds / (2 * self.least * seconds)), 2), MOST_CALLS)


class Replay:
    """A CUDA graph of `calls` calls, the i-th with the i-th inputs; `output` is what the first one writes."""

    def __init__(self, call: Callable[[int], torch.Tensor], calls: int, pool: Any) -> None:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # what is compiled or allocated once must not be captured
            for index in range(min(calls, 2)):
                call(index)
        torch.cuda.current_stream().wait_stream(side)
        self.calls = calls
        self.graph = torch.cuda.CUDAGraph()
        # Without torch.cuda.graph, which gives all cached memory back first: dozens of captures take turns here.
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            self.graph.capture_begin(pool=pool)
            try:
                self.output = call(0)
                for index in range(1, calls):
                    call(index)
            except BaseException:
                with suppress(RuntimeError):  # a broken capture is not to hide what broke it
                    self.graph.capture_end()
                raise
            self.graph.capture_end()


def time_replays(replays: Mapping[Key, Replay], budget: Budget) -> dict[Key, Timing]:
    """Replay in turns: back to back, so that the device never waits for the host; long ones each after a rest."""
    seconds: dict[Key, list[float]] = {key: [] for key in replays}
    lengths = {key: _replayed([replay])[0] for key, replay in replays.items()}
    rounds = {key: budget.rounds(length) for key, length in lengths.items()}
    long = {key for key, length in lengths.items() if budget.rest and length > LONG}
    waker = replays[min(lengths, key=lambda key: lengths[key])] if lengths else None
    for turn in range(max(rounds.values(), default=0)):
        playing = [key for key in replays if turn < rounds[key]]
        short = [key for key in playing if key not in long]
        for key, spent in zip(short, _replayed([replays[key] for key in short]), strict=True):
            seconds[key].append(spent)
        for key in playing:
            if key in long and waker is not None:
                seconds[key].append(_rested(replays[key], waker, budget.rest))
    return {key: _timing(Mode.GRAPH, seconds[key], replay.calls) for key, replay in replays.items()}


def time_calls(
    calls: Mapping[Key, tuple[Callable[[int], object], int]], device: torch.device, budget: Budget
) -> dict[Key, Timing]:
    """Call in turns; a round is so many calls as stand beside the function, and the wait for the device."""
    seconds: dict[Key, list[float]] = {key: [] for key in calls}
    rounds = {key: budget.rounds(_called(*call, device)) for key, call in calls.items()}
    for turn in range(max(rounds.values(), default=0)):
        for key, call in calls.items():
            if turn < rounds[key]:
                seconds[key].append(_called(*call, device))
    return {key: _timing(Mode.EAGER, seconds[key], num_calls) for key, (_, num_calls) in calls.items()}


def _replayed(replays: Sequence[Replay]) -> list[float]:
    """Seconds of one replay of each, one right after the other."""
    if not replays:
        return []
    replays[-1].graph.replay()  # keeps the device busy while the host queues the rest
    events = [_event() for _ in range(len(replays) + 1)]
    events[0].record()
    for replay, event in zip(replays, events[1:], strict=True):
        replay.graph.replay()
        event.record()
    events[-1].synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(events)]


def _rested(replay: Replay, waker: Replay, rest: float) -> float:
    """Seconds of one replay on a device that was idle for `rest` seconds, and then woken by a short replay."""
    torch.cuda.synchronize()
    time.sleep(rest)
    waker.graph.replay()
    start, end = _event(), _event()
    start.record()
    replay.graph.replay()
    end.record()
    end.synchronize()
    seconds: float = start.elapsed_time(end) / 1e3
    return seconds


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _called(call: Callable[[int], object], num_calls: int, device: torch.device) -> float:
    """Seconds of a round."""
    synchronize(device)
    start = time.perf_counter()
    for index in range(num_calls):
        call(index)
    synchronize(device)
    return time.perf_counter() - start


def _timing(mode: Mode, seconds: Sequence[float], calls: int) -> Timing:
    cuts = quantiles(seconds, n=10, method="inclusive")
    per_call = 1e6 / calls
    return Timing(
        mode=mode,
        median=cuts[4] * per_call,
        p10=cuts[0] * per_call,
        p90=cuts[8] * per_call,
        rounds=len(seconds),
        calls=calls,
    )


def synchronize(device: torch.device) -> None:
    """Wait until `device` is through with everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
