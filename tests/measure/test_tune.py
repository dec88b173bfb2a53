"""Tuning: evidence that a resolution takes, configurations that a backend takes, and ranks that agree."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from moe_core.contract.catalog import Catalog, CatalogEntry
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.evidence import Evidence, EvidenceMismatchError
from moe_core.contract.vocabulary import QuantAlgo
from moe_core.environment import preset
from moe_core.execution import ParallelGroups
from moe_core.measure.floor import Ceilings
from moe_core.measure.site import Site
from moe_core.measure.timing import Budget
from moe_core.measure.tune import RankBench, agreed, evidence_of, measure_candidates, tune_kernels
from moe_core.registry import load_catalog
from moe_core.resolve import resolve_moe_impl
from moe_core.testing.problems import small_problem
from moe_core.testing.ranks import run_on_ranks

CEILINGS = Ceilings(source="made up", read_gb_s=10, bf16_tflop_s=1)
BRIEF = Budget(0.002, least=2, most=3)
ADJUSTABLE, LOOP = "tests.example.adjustable.none", "moe_core.torch.reference_loop.any"


def test_evidence_moves_a_selection(site_of):
    site, problem = site_of("Adjustable", "Wrong"), small_problem()
    trials = list(measure_candidates(RankBench(problem, (4, 1, 4), site, CEILINGS)))
    assert {trial.tokens for trial in trials} == {1, 4}
    evidence = evidence_of(problem, trials, site, "a test")
    measured = {m.identity for m in evidence.measurements}
    assert "tests.example.wrong.none" not in measured, "a wrong answer is no evidence"
    assert ADJUSTABLE in measured
    report = resolve_moe_impl(problem, site.deployment, candidates=site.catalog, evidence=evidence)
    times = {row.identity: row.microseconds for row in report.backend.eligible if row.microseconds}
    assert set(times) == measured
    assert report.winner().identity == min(times, key=times.get)


def test_the_fastest_right_configuration_is_kept(site_of):
    bench = RankBench(small_problem(), (2, 5), site_of("Adjustable"), CEILINGS)
    ((subject, backend, tuned),) = tune_kernels(bench)
    assert subject.name == ADJUSTABLE
    assert [(row.tokens, row.config["name"]) for row in tuned] == [(2, "quick"), (5, "quick")]
    assert all(row.microseconds < row.default_microseconds for row in tuned)
    assert backend.config is None, "it chooses by itself again"
    assert backend.table(tuned, {"1": ["slower", 0]}) == {
        "1": ["slower", 0], "2": ["quick", 1], "5": ["quick", 1],
    }  # fmt: skip


@pytest.mark.parametrize("quant", [QuantAlgo.FP8_BLOCK_SCALES, QuantAlgo.W4A16_MXFP4, QuantAlgo.W4A16_AWQ])
def test_quantized_experts_are_tuned(quant, site_of):
    bench = RankBench(small_problem(quant=quant), (2,), site_of("Adjustable"), CEILINGS)
    trials = list(measure_candidates(bench))
    assert {trial.row.name for trial in trials if trial.row.is_right} == {ADJUSTABLE, LOOP}
    ((_, _, tuned),) = tune_kernels(bench)
    assert [(row.tokens, row.config["name"]) for row in tuned] == [(2, "quick")]


def test_tokens_are_drawn_and_judged_once(site_of, monkeypatch):
    drawn = []
    inputs = RankBench._inputs
    monkeypatch.setattr(RankBench, "_inputs", lambda bench, tokens: drawn.append(tokens) or inputs(bench, tokens))
    bench = RankBench(small_problem(), (2, 5), site_of("Adjustable"), CEILINGS)
    list(measure_candidates(bench))
    list(tune_kernels(bench))
    assert drawn == [2, 5]


def site_of_rank(rank, world):
    sys.path.append(str(Path(__file__).with_name("plugins")))
    from measured_examples.declared import candidate

    return Site(
        catalog=Catalog([*load_catalog().entries, CatalogEntry(candidate("Adjustable"))]),
        deployment=MoEDeployment(environment=preset("cpu"), ep_size=world),
        device=torch.device("cpu"),
        groups=ParallelGroups(rank=rank, ep_rank=rank, group=dist.group.WORLD),
        seed=rank,
        budget=BRIEF,
    )


def gathered(mine):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def measure_on_rank(rank, world):
    site, problem = site_of_rank(rank, world), small_problem()
    bench = RankBench(problem, (3,), site, CEILINGS)
    own = evidence_of(problem, list(measure_candidates(bench)), site, "a test")
    found = agreed(own)
    ours, results = gathered(own), gathered(found)
    assert results == [found] * world
    assert found.measurements, "nothing was right on a share of the experts"
    times = [{m.identity: m.microseconds for m in one.measurements} for one in ours]
    assert {m.identity: m.microseconds for m in found.measurements} == {
        identity: max(of_rank[identity] for of_rank in times) for identity in times[0]
    }
    assert {m.ep_size for m in found.measurements} == {world}
    ((_, _, tuned),) = tune_kernels(bench)
    assert gathered(tuned) == [tuned] * world
    assert tuned[0].config == {"name": "quick"}
    with pytest.raises(EvidenceMismatchError, match=f"rank {world - 1} lacks"):
        agreed(found if rank < world - 1 else Evidence())


@pytest.mark.dist
def test_ranks_end_with_one_result():
    run_on_ranks(2, measure_on_rank, 2)
