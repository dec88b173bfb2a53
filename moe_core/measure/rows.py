"""One number of tokens: everybody is tried, compared with the twin, captured, and timed in turns."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from moe_core.measure.inputs import Tokens
from moe_core.measure.judge import Judge
from moe_core.measure.results import Row, Timing
from moe_core.measure.site import Site
from moe_core.measure.subjects import Subject, told
from moe_core.measure.timing import Budget, Replay, synchronize, time_calls, time_replays


class Attempt:
    """One subject on its way to a row."""

    def __init__(self, subject: Subject, inputs: Sequence[Tokens], tokens: int) -> None:
        self.subject, self.tokens = subject, tokens
        self.error: float | None = None
        self.reason = subject.why_not(tokens)
        self.replay: Replay | None = None
        self._inputs = inputs
        self.seconds = 0.0

    def call(self, index: int) -> Any:
        """The subject's answer to the `index`-th inputs, by the experts whose turn it is."""
        calls = self.subject.calls
        return calls[index % len(calls)](self._inputs[index])

    def attempt(self, judge: Judge, device: torch.device) -> None:
        """Call it once for its answer, and once more for how long it takes."""
        with self._telling(device):
            self.error = judge.error(self.call(0))
            start = time.perf_counter()
            self.call(1 % len(self._inputs))
            synchronize(device)
            self.seconds = time.perf_counter() - start

    def capture(self, pool: Any, device: torch.device) -> bool:
        """Make its graph; ``False`` when that failed."""
        if self.reason is not None or not self.subject.captured(self.tokens):
            return True
        with self._telling(device, "not captured: "):
            self.replay = Replay(self.call, len(self._inputs), pool)
        return self.replay is not None

    def calls_within(self, budget: Budget) -> int:
        """Calls of a round by the host's clock."""
        return min(len(self._inputs), budget.calls(max(self.seconds, 1e-6)))

    def judge_replay(self, judge: Judge) -> None:
        """Compare what the replays wrote as well."""
        if self.replay is not None and self.error is not None:
            # Graphs of one pool overwrite each other's outputs, and another may have had the last turn.
            self.replay.graph.replay()
            again = judge.error(self.replay.output)
            self.error = None if again is None else max(self.error, again)

    def row(self, graph: Timing | None, eager: Timing | None) -> Row:
        """What came of it."""
        subject, timing = self.subject, graph or eager
        reason = self.reason
        if reason is None and timing is not None and self.error is None:
            reason = "the answer has NaN, infinity, ids of no expert, or another shape"
        return Row(
            name=subject.name,
            role=subject.role,
            timing=timing,
            eager=eager,
            error=self.error,
            tolerance=subject.tolerance,
            reason=reason,
        )

    @contextmanager
    def _telling(self, device: torch.device, prefix: str = "") -> Iterator[None]:
        """Keep an error as the reason, unless the device is lost with it."""
        try:
            yield
        except Exception as error:
            synchronize(device)  # raises when nothing can run there any more
            self.reason = prefix + told(error)


def measure_rows(
    subjects: Sequence[Subject], inputs: Sequence[Tokens], judge: Judge, tokens: int, site: Site
) -> list[Row]:
    """A row for each of `subjects`, in their order; `judge` knows the answer to the first of `inputs`."""
    attempts = [Attempt(subject, inputs, tokens) for subject in subjects]
    for attempt in attempts:
        if attempt.reason is None:
            attempt.attempt(judge, site.device)
    running = [attempt for attempt in attempts if attempt.reason is None]
    graph: dict[Attempt, Timing] = {}
    if site.device.type == "cuda":
        graph = _graph_times(running, judge, site)
    eager = _eager_times(running, graph, site)
    return [attempt.row(graph.get(attempt), eager.get(attempt)) for attempt in attempts]


def _graph_times(attempts: Sequence[Attempt], judge: Judge, site: Site) -> dict[Attempt, Timing]:
    # Graphs of one pool use the same memory in turns; one whose capture failed may leave the pool unusable.
    pool = torch.cuda.graph_pool_handle()
    for attempt in attempts:
        if not attempt.capture(pool, site.device):
            pool = torch.cuda.graph_pool_handle()
    replays = {attempt: attempt.replay for attempt in attempts if attempt.replay is not None}
    times = time_replays(replays, site.budget)
    for attempt in attempts:
        attempt.judge_replay(judge)
        attempt.replay = None
    return times


def _eager_times(attempts: Sequence[Attempt], graph: dict[Attempt, Timing], site: Site) -> dict[Attempt, Timing]:
    """The host's times: within the whole budget for those without a graph, at a glance for the others."""
    glance = Budget(site.budget.seconds / 5, least=3, most=site.budget.most)
    times: dict[Attempt, Timing] = {}
    for budget, those in (
        (site.budget, [a for a in attempts if a not in graph]),
        (glance, [a for a in attempts if a in graph]),
    ):
        times |= time_calls({a: (a.call, a.calls_within(budget)) for a in those}, site.device, budget)
    return times
