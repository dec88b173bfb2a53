"""The layer on two GPUs, one rank each, through NCCL: every parallelism and strategy, and capture in a CUDA graph."""

import importlib.util
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from moe_core.contract.catalog import Catalog
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.partition import expert_partition, expert_start
from moe_core.contract.request import MoERequest
from moe_core.contract.vocabulary import Device, LinkKind
from moe_core.execution import ParallelGroups
from moe_core.layer import ConfigurableMoE
from moe_core.resolve import plan_forward, resolve_moe_impl
from moe_core.testing.numerics import assert_close
from moe_core.testing.ranks import run_on_ranks

spec = importlib.util.spec_from_file_location("on_ranks", Path(__file__).with_name("test_layer_on_ranks.py"))
on_ranks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(on_ranks)

needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
COUNTS = ([5, 3], [0, 4], [2, 2], [0, 7], [0, 0])


class Scene(on_ranks.Scene):
    """The same, on this rank's GPU."""

    def __init__(self, rank, **changes):
        super().__init__(rank, **changes)
        self.device = torch.device("cuda", rank)
        major, minor = torch.cuda.get_device_capability(self.device)
        self.environment = MoEEnvironment(
            device=Device.CUDA, sm=10 * major + minor, link=LinkKind.NVLINK, can_jit=True
        ).with_packages(torch=torch.__version__)

    def report(self, deployment, backend, communication, **limits):
        return resolve_moe_impl(
            self.problem,
            MoEDeployment(environment=self.environment, **dict.fromkeys(deployment, 2), **limits),
            request=MoERequest(backend=backend, communication=communication, allow_degradation=False),
            candidates=Catalog.of(on_ranks.CANDIDATES),
        )

    def layer(self, report):
        experts = self.problem.num_experts
        if report.deployment.world_size == 1:
            return ConfigurableMoE.from_report(
                report, self.weights.to(self.device), catalog=Catalog.of(on_ranks.CANDIDATES), device=self.device
            )
        if report.deployment.ep_size > 1:
            start, place = expert_start(experts, 2, self.rank), {"ep_rank": self.rank}
            share = self.weights.of_slots(start, start + expert_partition(experts, 2)[self.rank])
        else:
            share, place = self.weights.of_tp_rank(self.rank, 2), {"tp_rank": self.rank}
        return ConfigurableMoE.from_report(
            report,
            share.to(self.device),
            catalog=Catalog.of(on_ranks.CANDIDATES),
            device=self.device,
            groups=ParallelGroups(rank=self.rank, group=dist.group.WORLD, **place),
        )


def answer_in_every_way(rank):
    scene = Scene(rank)
    ways = [(*way, limit) for way in on_ranks.WAYS.values() for limit in (None, 3)]
    for deployment, backend, communication, limit in ways:
        report = scene.report(deployment, backend, communication, moe_max_num_tokens=limit)
        with scene.layer(report) as layer:
            for counts in COUNTS:
                x, logits = scene.inputs(counts)
                own = scene.own(counts) if report.deployment.use_dp else slice(None)
                told = {"all_rank_num_tokens": counts} if report.deployment.use_dp else {}
                actual = layer(x[own].to(scene.device), logits[own].to(scene.device), **told)
                assert_close(actual.cpu(), scene.expected(x, logits)[own], on_ranks.TOLERANCE)


@pytest.mark.gpu
@pytest.mark.dist
@needs_two
def test_two_gpus_together_answer_as_the_twin():
    run_on_ranks(2, answer_in_every_way, backend="nccl")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("backend", ["VANILLA", "TORCH_GROUPED"])
def test_chunks_on_two_streams_give_what_the_whole_gives(backend):
    """Also when rows are still being made on a third stream: the layer waits for the event, and no earlier."""
    scene = Scene(0)
    report = scene.report({}, backend, "NONE", moe_max_num_tokens=16, max_num_tokens=128)
    made, other = torch.cuda.Event(), torch.cuda.Stream()
    with scene.layer(report) as layer, torch.no_grad():
        assert plan_forward(report, [100]).may_overlap
        for seed in range(4):
            x, logits = scene.inputs([100], seed)
            rows, gates = torch.zeros_like(x, device=scene.device), logits.to(scene.device)
            torch.cuda.synchronize()
            with torch.cuda.stream(other):
                torch.cuda._sleep(20_000_000)
                rows.copy_(x.to(scene.device))
                made.record(other)
            actual = layer(rows, gates, input_ready_event=made)
            assert_close(actual.cpu(), scene.expected(x, logits), on_ranks.TOLERANCE)


def replay(rank):
    """What is captured once serves other tokens and other routes."""
    scene = Scene(rank, num_experts=8)
    counts = [4, 4]
    for communication in ("ALLGATHER", "ALLTOALL"):
        report = scene.report(on_ranks.DEP, "TORCH_GROUPED", communication, cuda_graph="full")
        with scene.layer(report) as layer, torch.no_grad():
            own = scene.own(counts)
            x, logits = (t[own].to(scene.device) for t in scene.inputs(counts))
            for _ in range(2):
                layer(x, logits, all_rank_num_tokens=counts)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = layer(x, logits, all_rank_num_tokens=counts)
            for seed in range(3):
                all_x, all_logits = scene.inputs(counts, seed)
                x.copy_(all_x[own])
                logits.copy_(all_logits[own])
                graph.replay()
                assert_close(captured.cpu(), scene.expected(all_x, all_logits)[own], on_ranks.TOLERANCE)


@pytest.mark.gpu
@pytest.mark.dist
@needs_two
def test_exchanges_replay_in_a_cuda_graph():
    run_on_ranks(2, replay, backend="nccl")
