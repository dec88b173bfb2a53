"""A scheduler between parts that only write down that they were called."""

from types import SimpleNamespace

import pytest
import torch

from moe_core.communication import Communication, Dispatched
from moe_core.contract.candidate import MoEActivationSupport, MoECandidate, MoEStaticCapability
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.plan import ChunkPlan, ForwardPlan, QuantizeOrder
from moe_core.contract.vocabulary import CandidateKind
from moe_core.execution import Binding, ParallelGroups
from moe_core.schedule import NO_BALANCER, ExternalCommMoEScheduler, ForwardInputs, FusedCommMoEScheduler, LayerParts
from moe_core.testing.problems import small_problem

BACKEND = MoECandidate(
    identity="a.b.c.none",
    kind=CandidateKind.BACKEND,
    family="A",
    title="a stub",
    activation=MoEActivationSupport(kinds=("Swiglu",)),
    capabilities=MoEStaticCapability(supports_graph_padding_trim=True),
)
STRATEGY = BACKEND.evolve(identity="d.e.f.any", kind=CandidateKind.COMMUNICATION)
PROBLEM = small_problem(hidden_size=4, top_k=2)


class Backend:
    """Doubles its rows."""

    def __init__(self, log):
        self.log, self.contexts = log, []

    def quantize_input(self, x):
        self.log.append(f"quantize {len(x)}")
        return x, None

    def run_moe(self, context):
        self.log.append(f"run {len(context.x)}")
        self.contexts.append(context)
        return context.x * 2


class Strategy(Communication):
    """Keeps the rows where they are."""

    def __init__(self, binding, log):
        super().__init__(binding)
        self.log, self.sent = log, []

    def prepare_dispatch(self, statistic_E):
        if statistic_E is not None:
            self.log.append("prepare_dispatch")

    def _dispatch(self, rows, all_rank_num_tokens):
        self.log.append(f"dispatch {list(all_rank_num_tokens)}")
        self.sent.append(rows)
        return Dispatched(*rows)

    def _combine(self, y):
        self.log.append("combine")
        return y


class Gathering(Strategy):
    gathers_statistics = True

    def gathered_statistic(self):
        return torch.ones(2, 8, dtype=torch.int32)


class Balancer:
    """Expert e is served by slot e + 10."""

    repeat_count = 2

    def __init__(self, log):
        self.log, self.counted = log, []

    def start_wait_gpu(self, is_first):
        self.log.append(f"start_wait_gpu {is_first}")

    def done_wait_gpu(self, is_first):
        self.log.append(f"done_wait_gpu {is_first}")

    def update_statistic(self, ids, *, is_first, is_last, ignore_allreduce):
        self.log.append(f"update_statistic {is_first} {is_last} {ignore_allreduce}")
        self.counted.append(ids)

    def local_statistic(self):
        return torch.zeros(8, dtype=torch.int32)

    def update_gathered_statistic(self, counts):
        self.log.append(f"update_gathered_statistic {list(counts.shape)}")

    def route(self, ids, use_dp):
        self.log.append(f"route {use_dp}")
        return ids + 10

    def start_set_cpu(self, is_last):
        self.log.append(f"start_set_cpu {is_last}")

    def done_set_cpu(self, is_last):
        self.log.append(f"done_set_cpu {is_last}")


@pytest.fixture
def stage():
    """Makes a scheduler with recorded parts, for rank 1 of 2 with tokens of their own unless told otherwise."""

    def make(kind="external", *, backend=Backend, comm=Strategy, balanced=False, rank=1, problem=PROBLEM, **parts):
        log = []
        candidate = parts.pop("candidate", BACKEND)
        binding = Binding(
            candidate, problem, MoEDeployment(ep_size=2, dp_size=2), torch.device("cpu"), torch.float32,
            ParallelGroups(rank=rank, ep_rank=rank),
        )  # fmt: skip
        exchange = Binding(
            parts.pop("strategy", STRATEGY.evolve(capabilities=BACKEND.capabilities)), problem, binding.deployment,
            binding.device, binding.dtype, binding.groups,
        )  # fmt: skip

        def select(logits, input_ids):
            log.append(f"route {len(logits)}" + ("" if input_ids is None else f" ids {len(input_ids)}"))
            k = problem.top_k
            return logits[:, :k].int(), logits[:, 2 : 2 + k].float()

        made = SimpleNamespace(
            log=log, backend=backend(log), comm=comm(exchange, log), balancer=Balancer(log) if balanced else NO_BALANCER
        )
        scheduler = {"external": ExternalCommMoEScheduler, "fused": FusedCommMoEScheduler}[kind]
        made.forward = scheduler(
            LayerParts(binding, made.backend, select, {STRATEGY.identity: made.comm}, made.balancer, **parts)
        ).forward
        return made

    return make


def plan_of(*chunks, tokens, padded=None, kept=None, quantize=QuantizeOrder.BEFORE_DISPATCH, **fields):
    """A plan of chunks by sizes; every rank keeps all unless `kept` says otherwise."""
    kept = kept or [[True] * len(sizes) for sizes in chunks]
    return ForwardPlan(
        scheduler_kind=fields.pop("scheduler_kind", "EXTERNAL_COMM"),
        backend=BACKEND.identity,
        communication=STRATEGY.identity,
        num_tokens=tokens,
        padded_tokens=padded or tokens,
        chunks=tuple(ChunkPlan(sizes=s, kept=k) for s, k in zip(chunks, kept, strict=True)),
        quantize=quantize,
        **fields,
    )


def inputs_of(num_rows, num_real=None, **fields):
    """Rows 1, 2, … with ids (row, row + 1) modulo 8."""
    rows = torch.arange(1.0, num_rows + 1)
    logits = torch.zeros(num_rows, 8)
    logits[:, 0], logits[:, 1], logits[:, 2:4] = rows % 8, (rows + 1) % 8, 0.5
    return ForwardInputs(
        x=rows.unsqueeze(1).expand(num_rows, 4).contiguous(),
        router_logits=logits,
        num_real=num_rows if num_real is None else num_real,
        **fields,
    )


@pytest.fixture
def plan():
    return plan_of


@pytest.fixture
def inputs():
    return inputs_of


@pytest.fixture
def stubs():
    """The parts, to make others of."""
    return SimpleNamespace(
        Backend=Backend, Strategy=Strategy, Gathering=Gathering, BACKEND=BACKEND, STRATEGY=STRATEGY, PROBLEM=PROBLEM
    )
