"""The layer on several ranks answers what the twin answers on one: every parallelism, strategy and scheduler."""

import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from moe_core.contract.catalog import Catalog
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.partition import expert_partition, expert_start
from moe_core.contract.request import MoERequest
from moe_core.contract.vocabulary import Device, DType
from moe_core.execution import TORCH_DTYPE, ParallelGroups
from moe_core.layer import ConfigurableMoE, MoEDegradationWarning
from moe_core.reference import reference_moe
from moe_core.resolve import plan_forward, resolve_moe_impl
from moe_core.routing import route
from moe_core.testing.numerics import assert_bitwise_equal, assert_close, tolerance_in
from moe_core.testing.problems import ACTIVATIONS, small_problem
from moe_core.testing.ranks import run_on_ranks
from moe_core.testing.weights import random_weights
from moe_plugins import (
    comm_all_gather,
    comm_all_to_all,
    comm_expert_major,
    comm_none,
    fused_all_to_all,
    torch_grouped,
    vanilla,
)

MODULES = (comm_none, comm_all_gather, comm_all_to_all, comm_expert_major, vanilla, torch_grouped, fused_all_to_all)
CANDIDATES = tuple(candidate for module in MODULES for candidate in module.CANDIDATES)
CPU = MoEEnvironment(device=Device.CPU, sm=0).with_packages(torch="2.13.0")
TOLERANCE = 8e-3

DEP, TEP, DTP, TTP = ({"ep_size": 3, "dp_size": 3}, {"ep_size": 3}, {"tp_size": 3, "dp_size": 3}, {"tp_size": 3})
WAYS = {
    "DEP by all-gather": (DEP, "VANILLA", "ALLGATHER"),
    "DEP by all-gather, grouped": (DEP, "TORCH_GROUPED", "ALLGATHER"),
    "DEP by all-to-all": (DEP, "VANILLA", "ALLTOALL"),
    "DEP by all-to-all, grouped": (DEP, "TORCH_GROUPED", "ALLTOALL"),
    "DEP expert-major": (DEP, "VANILLA", "EXPERT_MAJOR"),
    "DEP expert-major, grouped": (DEP, "TORCH_GROUPED", "EXPERT_MAJOR"),
    "DEP in the kernel": (DEP, "FUSED_ALLTOALL", "auto"),
    "TEP": (TEP, "VANILLA", "NONE"),
    "DTP": (DTP, "VANILLA", "ALLGATHER"),
    "TTP": (TTP, "VANILLA", "NONE"),
}
COUNTS = ([5, 3, 1], [0, 4, 2], [2, 2, 2], [0, 0, 7], [0, 0, 0])


class Scene:
    """One problem on the ranks of a group, in one way or another."""

    def __init__(self, rank, **changes):
        # Seven experts do not divide over three ranks, nor does a width of 32.
        self.problem = small_problem(**{**ACTIVATIONS["swiglu_bias"], "num_experts": 7, **changes})
        self.rank, self.dtype = rank, TORCH_DTYPE[self.problem.dtype_act]
        self.weights = random_weights(self.problem, dtype=self.dtype)

    def report(self, deployment, backend, communication, candidates=CANDIDATES, **limits):
        return resolve_moe_impl(
            self.problem,
            MoEDeployment(environment=CPU, **deployment, **limits),
            request=MoERequest(backend=backend, communication=communication),
            candidates=Catalog.of(candidates),
        )

    def layer(self, report, candidates=CANDIDATES):
        ep, tp, experts = report.deployment.ep_size, report.deployment.tp_size, self.problem.num_experts
        ep_rank, tp_rank = divmod(self.rank, tp)
        start = expert_start(experts, ep, ep_rank)
        share = self.weights.of_slots(start, start + expert_partition(experts, ep)[ep_rank]).of_tp_rank(tp_rank, tp)
        groups = ParallelGroups(rank=self.rank, ep_rank=ep_rank, tp_rank=tp_rank, group=dist.group.WORLD)
        return ConfigurableMoE.from_report(report, share, catalog=Catalog.of(candidates), groups=groups)

    def inputs(self, counts, seed=0, skew=0.0):
        """Rows and logits of all ranks, equal on each; `skew` draws all tokens to the first experts."""
        generator = torch.Generator().manual_seed(sum(counts) + 100 * seed)
        x = torch.randn(sum(counts), self.problem.hidden_size, generator=generator).to(self.dtype)
        logits = torch.randn(sum(counts), self.problem.num_experts, generator=generator)
        return x, logits - skew * torch.arange(self.problem.num_experts)

    def expected(self, x, logits):
        return reference_moe(self.problem, x, self.weights, *route(self.problem, logits))

    def own(self, counts):
        start = sum(counts[: self.rank])
        return slice(start, start + counts[self.rank])


def answer_in_every_way(rank):
    scene = Scene(rank)
    for deployment, backend, communication in WAYS.values():
        report = scene.report(deployment, backend, communication)
        with scene.layer(report) as layer:
            for counts in COUNTS:
                x, logits = scene.inputs(counts)
                if report.deployment.use_dp:
                    own = scene.own(counts)
                    actual = layer(x[own], logits[own], all_rank_num_tokens=counts)
                    assert_close(actual, scene.expected(x, logits)[own], TOLERANCE)
                else:
                    assert_close(layer(x, logits), scene.expected(x, logits), TOLERANCE)


def step_down_for_large_workloads(rank):
    """A strategy of bounded buffers serves what it can, and is back after what it cannot."""
    scene = Scene(rank)
    report = scene.report(DEP, "VANILLA", "EXPERT_MAJOR", max_dispatch_tokens=3)
    with scene.layer(report) as layer:
        for counts, is_served in (([1, 2, 3], True), ([4, 5, 6], False), ([7, 0, 6], False), ([3, 3, 3], True)):
            assert (plan_forward(report, counts).communication == report.communication.winner) == is_served
            x, logits = scene.inputs(counts)
            own = scene.own(counts)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                actual = layer(x[own], logits[own], all_rank_num_tokens=counts)
            assert_close(actual, scene.expected(x, logits)[own], TOLERANCE)
            told = [str(w.message) for w in caught if w.category is MoEDegradationWarning]
            assert len(told) == (counts == [4, 5, 6]), "once per cause"
        [(step, times)] = layer.degradations.items()
        assert (step.source, step.reason, times) == (
            "moe_core.collective.expert_major.any", "its buffers hold 3 tokens per rank", 2
        )  # fmt: skip


SLOTS = [0, 1, 2, 3, 4, 5, 6, 0, 3]
"""The expert of each slot: experts 0 and 3 are there twice, on different ranks."""


class Replicas:
    """A balancer that moves nothing: tokens take the replicas of their experts in turn."""

    repeat_count = 1

    def __getattr__(self, hook):
        return lambda *arguments, **options: None

    def route(self, ids, use_dp):
        slots = [[slot for slot, expert in enumerate(SLOTS) if expert == wanted] for wanted in range(7)]
        first, last = (torch.tensor([found[i] for found in slots], dtype=torch.int32) for i in (0, -1))
        is_even = torch.arange(len(ids)).unsqueeze(1) % 2 == 0
        chosen = torch.where(is_even, first[ids.clamp(min=0)], last[ids.clamp(min=0)])
        return torch.where(ids < 0, len(SLOTS), chosen)


def serve_experts_by_slot(rank):
    """Slots, not experts, cross between ranks; a padding row that the balancer sends nowhere stays nowhere."""
    able = tuple(
        c.evolve(capabilities=c.capabilities.evolve(supports_eplb=True)) if c.kind == "backend" else c
        for c in CANDIDATES
    )
    scene = Scene(rank)
    experts, groups = SLOTS[3 * rank : 3 * rank + 3], ParallelGroups(rank=rank, ep_rank=rank, group=dist.group.WORLD)
    share = scene.weights.map(lambda tensor: tensor[experts])
    for name, (deployment, backend, communication) in WAYS.items():
        if not name.startswith("DEP"):
            continue
        report = scene.report(deployment, backend, communication, able, eplb_enabled=True, num_slots=len(SLOTS))
        with ConfigurableMoE.from_report(
            report, share, catalog=Catalog.of(able), groups=groups, balancer=Replicas()
        ) as layer:
            for counts in COUNTS:
                x, logits = scene.inputs(counts)
                own = scene.own(counts)
                actual = layer(x[own], logits[own], all_rank_num_tokens=counts)
                assert_close(actual, scene.expected(x, logits)[own], TOLERANCE)


class RowQuantized:
    """Rows travel as float8 with a scale each; experts are the twin."""

    def __init__(self, binding):
        self.binding = binding

    def prepare(self, weights):
        self.weights = weights

    def quantize_input(self, x):
        scale = x.float().abs().amax(dim=1, keepdim=True).clamp(min=1e-6) / 448
        return (x.float() / scale).to(torch.float8_e4m3fn), scale

    def run_moe(self, context):
        x = context.x.float() * context.x_sf
        slots = context.token_selected_slots - self.binding.slot_start
        y = reference_moe(self.binding.problem, x, self.weights, slots, context.token_final_scales)
        return y.to(self.binding.dtype)


def quantize_before_and_after(rank):
    """Rows that are quantized one by one give the same bits on either side of the exchange."""
    sys.modules["row_quantized"] = SimpleNamespace(Backend=RowQuantized)
    (vanilla_loop,) = vanilla.CANDIDATES
    quantizing = vanilla_loop.evolve(identity="a.b.c.any", family="ROWS", factory="row_quantized:Backend")
    before = (*CANDIDATES, quantizing)
    after = tuple(c.evolve(post_quant=()) if c.kind == "communication" else c for c in before)
    scene = Scene(rank)
    for communication in ("ALLGATHER", "ALLTOALL", "EXPERT_MAJOR"):
        for counts in COUNTS:
            x, logits = scene.inputs(counts)
            own, answers = scene.own(counts), []
            for candidates, order in ((before, "before_dispatch"), (after, "after_dispatch")):
                report = scene.report(DEP, "ROWS", communication, candidates)
                assert plan_forward(report, counts).quantize == order
                with scene.layer(report, candidates) as layer:
                    answers.append(layer(x[own], logits[own], all_rank_num_tokens=counts))
            assert_bitwise_equal(*answers)
            assert_close(answers[0], scene.expected(x, logits)[own], 0.05)


def refuse_gradients(rank):
    scene = Scene(rank)
    for deployment, backend, communication in (WAYS["DEP by all-to-all"], WAYS["DEP in the kernel"]):
        with scene.layer(scene.report(deployment, backend, communication)) as layer:
            x, logits = torch.zeros(1, 64, dtype=scene.dtype), torch.zeros(1, 7, requires_grad=True)
            with pytest.raises(RuntimeError, match="moves no gradients"):
                layer(x, logits, all_rank_num_tokens=[1, 1, 1])
            with torch.no_grad():
                layer(x, logits, all_rank_num_tokens=[1, 1, 1])


def every_way(rank):
    answer_in_every_way(rank)
    step_down_for_large_workloads(rank)
    serve_experts_by_slot(rank)
    quantize_before_and_after(rank)
    refuse_gradients(rank)


@pytest.mark.dist
def test_ranks_together_answer_as_the_twin():
    run_on_ranks(3, every_way)


def answer_with_experts_and_matrices_split(rank):
    """Four ranks: two by two, with tokens of their own or the same; and replicas of attention that span two ranks."""
    scene = Scene(rank)
    for deployment, communication, counts in (
        ({"ep_size": 2, "tp_size": 2, "dp_size": 4}, "ALLGATHER", [3, 0, 2, 5]),
        ({"ep_size": 2, "tp_size": 2}, "NONE", [6]),
    ):
        x, logits = scene.inputs(counts)
        own = scene.own(counts) if len(counts) > 1 else slice(None)
        with scene.layer(scene.report(deployment, "VANILLA", communication)) as layer:
            actual = layer(x[own], logits[own], all_rank_num_tokens=counts)
        assert_close(actual, scene.expected(x, logits)[own], TOLERANCE)
    for communication in ("ALLGATHER", "ALLTOALL"):
        x, logits = scene.inputs([3, 2])
        own = slice(0, 3) if rank < 2 else slice(3, 5)
        with scene.layer(scene.report({"ep_size": 4, "dp_size": 2}, "VANILLA", communication)) as layer:
            actual = layer(x[own], logits[own], all_rank_num_tokens=[3, 3, 2, 2])
        assert_close(actual, scene.expected(x, logits)[own], TOLERANCE)


@pytest.mark.dist
def test_experts_and_matrices_are_split_together():
    run_on_ranks(4, answer_with_experts_and_matrices_split)


def answer_in_chunks(rank):
    """Random workloads, skewed and with ranks that have nothing: chunks give what the whole gives, padded or not."""
    scene = Scene(rank, dtype_act=DType.FLOAT32)
    tolerance = tolerance_in(scene.dtype, TOLERANCE)
    ways = [way for name, way in WAYS.items() if name.startswith("DEP") and "grouped" not in name]
    generator = torch.Generator().manual_seed(11)
    for deployment, backend, communication in ways:
        whole = scene.layer(scene.report(deployment, backend, communication))
        for limit in (1, 5):
            report = scene.report(deployment, backend, communication, moe_max_num_tokens=limit)
            with scene.layer(report) as layer:
                for seed in range(3):
                    counts = (
                        torch.randint(0, 6, (3,), generator=generator) * (torch.rand(3, generator=generator) > 0.2)
                    ).tolist()
                    x, logits = scene.inputs(counts, seed, skew=float(seed))
                    own, expected = scene.own(counts), scene.expected(x, logits)
                    most = max(counts)
                    rows, gates = x[own], logits[own]
                    padded = [torch.cat([t, t.new_full((most - len(t), t.shape[1]), torch.nan)]) for t in (rows, gates)]
                    for given, use_dp_padding in (((rows, gates), False), (padded, True)):
                        actual = layer(*given, all_rank_num_tokens=counts, use_dp_padding=use_dp_padding)
                        assert_close(actual, expected[own], tolerance)
                    assert_close(whole(rows, gates, all_rank_num_tokens=counts), expected[own], tolerance)
                assert not layer.degradations, "the strategy that is tried served every chunk"
        whole.destroy()


@pytest.mark.dist
def test_chunks_give_what_the_whole_gives():
    run_on_ranks(3, answer_in_chunks)


def test_own_rows_that_contradict_the_counts():
    scene = Scene(0)
    report = scene.report({}, "VANILLA", "NONE")
    with (
        scene.layer(report) as layer,
        pytest.raises(ValueError, match="rank 0 has 2 rows, but all_rank_num_tokens says 3"),
    ):
        layer(torch.zeros(2, 64, dtype=scene.dtype), torch.zeros(2, 7), all_rank_num_tokens=[3])


def test_layers_of_one_rank_need_no_counts_and_repeat_bitwise():
    scene = Scene(0)
    x, logits = scene.inputs([4])
    with scene.layer(scene.report({}, "VANILLA", "NONE")) as layer:
        assert_bitwise_equal(layer(x, logits), layer(x, logits, all_rank_num_tokens=[4]))
