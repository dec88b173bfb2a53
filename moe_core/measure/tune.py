"""Tuning: what is fastest on these machines, as evidence for the resolver and as configurations for a backend.

Ranks measure their own share, all the same candidates in the same order. Nothing is exchanged until they agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist

from moe_core.contract.evidence import Evidence, Measurement, merge_evidence
from moe_core.contract.partition import expert_partition, expert_start, width_share
from moe_core.contract.problem import MoEProblem
from moe_core.execution import MoEBackend
from moe_core.measure.bench import expert_sets, give_back, release
from moe_core.measure.floor import Ceilings, floor_of
from moe_core.measure.inputs import Tokens, TokenSource
from moe_core.measure.judge import ExpertsJudge
from moe_core.measure.results import Row
from moe_core.measure.rows import measure_rows
from moe_core.measure.site import Site
from moe_core.measure.subjects import Lineup, Subject, line_up
from moe_core.measure.tunable import Config, Tunable, Tuned

Mine = TypeVar("Mine")


class Trial(NamedTuple):
    """A row at a number of tokens per rank."""

    tokens: int
    row: Row


class RankBench:
    """This rank's share of a problem's experts, bound to every candidate, and tokens as after an all-gather.

    Experts alone are timed: what is spent on an exchange is spent before and behind all of them.
    Raises ``ValueError`` when the format or a size is unknown.
    """

    def __init__(self, problem: MoEProblem, tokens: Sequence[int], site: Site, ceilings: Ceilings) -> None:
        self.problem, self.site, self.tokens = problem, site, tuple(sorted(set(tokens)))
        self._ceilings = ceilings
        self._known: dict[int, tuple[list[Tokens], ExpertsJudge]] = {}
        release(site.device)
        self._experts = expert_sets(_share(problem, site), site)

    def groups(self) -> Iterator[list[Subject]]:
        """Every candidate that is admitted here, in groups that are in memory together."""
        lineup: Lineup = line_up(self.problem, self.tokens, self.site, self._experts, peers=False)
        yield lineup.together
        for make in lineup.apart:
            yield [make()]
            release(self.site.device)

    def rows(self, subjects: Sequence[Subject], tokens: int) -> list[Row]:
        """A row for each subject, timed in turns over the same tokens."""
        if tokens not in self._known:
            self._known[tokens] = self._inputs(tokens)
        inputs, judge = self._known[tokens]
        measured = measure_rows(subjects, inputs, judge, tokens, self.site)
        give_back(self.site.device)
        return measured

    def _inputs(self, tokens: int) -> tuple[list[Tokens], ExpertsJudge]:
        """Calls, and what knows the answer to the first."""
        problem, site, rows = self.problem, self.site, self.site.rows_of(tokens)
        source = TokenSource(problem, site.device, site.seed + tokens, site.routing)
        least = floor_of(problem, rows, self._ceilings).microseconds * 1e-6 / site.deployment.world_size
        inputs = [source.draw(rows) for _ in range(site.budget.calls(least))]
        deployment = site.deployment
        first = expert_start(problem.num_experts or 1, deployment.ep_size, site.groups.ep_rank)
        return inputs, ExpertsJudge.of(problem, self._experts[0], inputs[0], slot_start=first)


@torch.inference_mode()
def measure_candidates(bench: RankBench) -> Iterator[Trial]:
    """Every candidate at every number of tokens."""
    for subjects in bench.groups():
        for tokens in bench.tokens:
            yield from (Trial(tokens, row) for row in bench.rows(subjects, tokens))


def evidence_of(problem: MoEProblem, trials: Sequence[Trial], site: Site, source: str) -> Evidence:
    """The times of right answers, as evidence about `problem` at this deployment."""
    deployment = site.deployment
    return Evidence(
        source=source,
        measurements=tuple(
            Measurement(
                identity=row.name,
                problem=problem.fingerprint,
                environment=deployment.environment.fingerprint,
                ep_size=deployment.ep_size,
                tp_size=deployment.tp_size,
                tokens=tokens,
                microseconds=row.timing.median,
            )
            for tokens, row in trials
            if row.timing is not None and row.is_right
        ),
    )


def agreed(evidence: Evidence) -> Evidence:
    """The evidence of all ranks together, equal on every rank: the slowest rank's time counts.

    Raises :class:`~moe_core.contract.evidence.EvidenceMismatchError` on every rank when they measured different sets.
    """
    return merge_evidence(_gathered(evidence))


@torch.inference_mode()
def tune_kernels(bench: RankBench) -> Iterator[tuple[Subject, Tunable, list[Tuned]]]:
    """For each tunable candidate, the fastest configuration at each number of tokens; the same on every rank."""
    for subjects in bench.groups():
        for subject in subjects:
            backend = subject.backends[0] if subject.backends else None
            if isinstance(backend, Tunable):
                admitted = [tokens for tokens in bench.tokens if subject.why_not(tokens) is None]
                found = (_fastest(bench, subject, backend, tokens) for tokens in admitted)
                yield subject, backend, [tuned for tuned in found if tuned is not None]


def _fastest(bench: RankBench, subject: Subject, backend: Tunable, tokens: int) -> Tuned | None:
    """``None`` when its own choice is not right or cannot run, or there is nothing else."""
    rows = bench.site.rows_of(tokens)
    configs: list[Config | None] = [None, *backend.configs(rows)]
    launchers = [_Launcher(made) for made in subject.backends]
    try:
        results = bench.rows([_as(subject, launchers, config) for config in configs], tokens)
    finally:
        backend.use(None)
    right = [row.timing.median if row.timing is not None and row.is_right else None for row in results]
    slowest = [None if None in times else max(times) for times in zip(*_gathered(right), strict=True)]
    times = [(time, index) for index, time in enumerate(slowest) if index and time is not None]
    if slowest[0] is None or not times:
        return None
    time, best = min(times)
    config = configs[best]
    assert config is not None  # the first alone is no configuration
    return Tuned(tokens=rows, config=config, microseconds=time, default_microseconds=slowest[0])


class _Launcher:
    """A backend that is told to launch otherwise only when that changes."""

    def __init__(self, backend: MoEBackend) -> None:
        self._backend = backend
        self._config: Config | None = None

    def __call__(self, config: Config | None, tokens: Tokens) -> torch.Tensor:
        assert isinstance(self._backend, Tunable)  # all backends of a subject are of one class
        if config is not self._config:
            self._backend.use(config)
            self._config = config
        return self._backend.run_moe(tokens.context)


def _as(subject: Subject, launchers: Sequence[_Launcher], config: Config | None) -> Subject:
    """`subject` launched as `config` says."""
    return replace(subject, calls=tuple(partial(launcher, config) for launcher in launchers))


def _share(problem: MoEProblem, site: Site) -> MoEProblem:
    """The problem whose experts are those of this rank."""
    deployment, groups = site.deployment, site.groups
    start, stop = width_share(problem.intermediate_size or 1, groups.tp_rank, deployment.tp_size)
    num_experts = expert_partition(problem.num_experts or 1, deployment.ep_size)[groups.ep_rank]
    # Its routing is never used, and must only be possible with fewer experts.
    return problem.evolve(
        num_experts=num_experts, intermediate_size=stop - start, top_k=1, num_expert_groups=None, topk_group=None
    )


def _gathered(mine: Mine) -> list[Mine]:
    """What every rank has, in order of rank."""
    if not dist.is_initialized():
        return [mine]
    everyone: list[Mine | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone  # type: ignore[return-value]
