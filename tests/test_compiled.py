"""Compiled code runs the layer as one operation, and gets what the layer gives."""

import copy

import pytest
import torch
import torch.distributed as dist

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.problem import MoEProblem
from moe_core.contract.request import MoERequest
from moe_core.environment import preset
from moe_core.execution import ParallelGroups
from moe_core.layer import ConfigurableMoE
from moe_core.registry import load_catalog
from moe_core.resolve import resolve_moe_impl
from moe_core.testing.numerics import assert_bitwise_equal
from moe_core.testing.problems import small_problem
from moe_core.testing.ranks import run_on_ranks
from moe_core.testing.weights import random_weights

HASHED = {"routing": "DeepSeekV4", "hashed_routing": True}
PADDED = {"is_padding": torch.arange(5) > 2}
INDUCTOR = (
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),  # its own
)


@pytest.fixture(autouse=True)
def _nothing_compiled_before():
    torch.compiler.reset()


def layer_for(problem: MoEProblem, groups=None, **deployment) -> ConfigurableMoE:
    place = MoEDeployment(environment=preset("cpu"), **deployment)
    request = MoERequest(communication="ALLGATHER" if place.use_dp else "auto")
    report = resolve_moe_impl(problem, place, candidates=load_catalog(), request=request)
    table = torch.arange(50 * problem.top_k).view(50, -1).int() % problem.num_experts
    share = problem.num_experts // place.ep_size
    start = groups.ep_rank * share if groups else 0
    return ConfigurableMoE.from_report(
        report,
        random_weights(problem).of_slots(start, start + share),
        routing_table=table if problem.hashed_routing else None,
        groups=groups,
    )


def inputs(*shape, hashed=False):
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(*shape, 64, generator=generator).bfloat16()
    logits = torch.randn(*shape, 8, generator=generator)
    return (x, logits, torch.randint(50, shape, generator=generator)) if hashed else (x, logits)


def compiled(layer, backend="eager", **options):
    """Something before and something after the layer, as a model has it."""
    return torch.compile(
        lambda x, *others: layer(x.neg(), *others, **options) + 1, fullgraph=True, backend=backend, dynamic=True
    )


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=INDUCTOR)])
def test_compiled_code_gets_what_the_layer_gives(backend):
    layer = layer_for(small_problem(**HASHED))
    call = compiled(layer, backend)
    with torch.no_grad():
        for shape in ((5,), (9,), (2, 3), (0,)):
            x, *others = inputs(*shape, hashed=True)
            assert_bitwise_equal(call(x, *others), layer(x.neg(), *others) + 1)


def test_one_graph_serves_every_number_of_tokens():
    layer, graphs = layer_for(small_problem()), []
    call = compiled(layer, lambda graph, _: graphs.append(graph) or graph.forward)
    for tokens in (5, 9, 64):
        call(*inputs(tokens))
    assert len(graphs) == 1


@pytest.mark.parametrize("options", [PADDED, {"use_dp_padding": True, "all_rank_num_tokens": [5]}])
def test_options_reach_the_layer(options, monkeypatch):
    layer, seen = layer_for(small_problem()), []
    run = layer._schedulers["moe_core.torch.grouped_mm.none"].forward

    def forward(plan, given, *rest, **more):
        seen.append(given)
        return run(plan, given, *rest, **more)

    monkeypatch.setattr(layer._schedulers["moe_core.torch.grouped_mm.none"], "forward", forward)
    x, logits = inputs(5)
    assert_bitwise_equal(compiled(layer, **options)(x, logits), layer(x.neg(), logits, **options) + 1)
    first, second = seen
    assert (first.num_real, first.is_padding is None) == (second.num_real, second.is_padding is None)


def test_weights_that_are_loaded_again_need_no_compiling():
    layer, graphs = layer_for(small_problem()), []
    call = compiled(layer, lambda graph, _: graphs.append(graph) or graph.forward)
    x, logits = inputs(5)
    before = call(x, logits)
    layer.load_weights(random_weights(small_problem(), seed=1))
    after = call(x, logits)
    assert not after.equal(before)
    assert_bitwise_equal(after, layer(x.neg(), logits) + 1)
    assert len(graphs) == 1


def compile_on_a_rank(rank):
    groups = ParallelGroups(rank=rank, ep_rank=rank, group=dist.group.WORLD)
    with layer_for(small_problem(), groups, ep_size=2, dp_size=2) as layer, torch.no_grad():
        for counts in ([5, 3], [0, 4]):
            x, logits = inputs(max(counts))
            for rows, padded in ((counts[rank], False), (max(counts), True)):
                options = {"all_rank_num_tokens": counts, "use_dp_padding": padded}
                actual = compiled(layer, **options)(x[:rows], logits[:rows])
                assert_bitwise_equal(actual, layer(x[:rows].neg(), logits[:rows], **options) + 1)
                assert actual.shape == (counts[rank], 64)


@pytest.mark.dist
def test_ranks_compile_and_exchange_tokens():
    run_on_ranks(2, compile_on_a_rank)


def test_gradients_are_refused():
    call = compiled(layer_for(small_problem()))
    x, logits = inputs(3)
    y = call(x.requires_grad_(), logits)
    with pytest.raises(RuntimeError, match=r"compiled experts have no gradients; try: torch\.no_grad"):
        y.sum().backward()


@pytest.mark.parametrize(
    "options",
    [{"do_finalize": False}, {"lora_params": ("adapter",)}, {"input_ready_event": object()}],
    ids=lambda options: next(iter(options)),
)
def test_what_the_operation_cannot_carry_is_refused(options):
    call = compiled(layer_for(small_problem()), **options)
    with pytest.raises(Exception, match=f"cannot call the layer with {next(iter(options))}"):
        call(*inputs(3))


def test_a_copy_or_a_layer_that_is_gone_is_not_run():
    layer = layer_for(small_problem())
    with pytest.raises(Exception, match="is gone, or a copy of another"):
        compiled(copy.deepcopy(layer))(*inputs(3))
