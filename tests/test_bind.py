"""A layer is bound to what its report says, or refused with every reason."""

import pytest
import torch

from moe_core.bind import binding_of
from moe_core.contract.catalog import Catalog
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.report import UnresolvedError
from moe_core.contract.request import MoERequest
from moe_core.contract.vocabulary import CandidateKind, Device
from moe_core.contract.vocabulary import RoutingMethodType as Method
from moe_core.execution import BindError, ParallelGroups
from moe_core.layer import ConfigurableMoE
from moe_core.resolve import resolve_moe_impl
from moe_core.testing.problems import small_problem
from moe_core.testing.weights import random_weights
from moe_plugins import comm_all_gather, comm_none, routing_torch, vanilla

(VANILLA,) = vanilla.CANDIDATES
STRATEGIES = (*comm_none.CANDIDATES, *comm_all_gather.CANDIDATES)
CATALOG = Catalog.of((VANILLA, *STRATEGIES))
CPU = MoEEnvironment(device=Device.CPU, sm=0)


def report_for(problem, *, environment=CPU, catalog=CATALOG, request=None, **deployment):
    return resolve_moe_impl(
        problem,
        MoEDeployment(environment=environment, **deployment),
        request=request or MoERequest(),
        candidates=catalog,
    )


def bind(report, weights=None, catalog=CATALOG, **arguments):
    weights = weights or random_weights(report.problem)
    return ConfigurableMoE.from_report(report, weights, catalog=catalog, **arguments)


def test_a_report_without_a_winner_gives_its_trail():
    with pytest.raises(UnresolvedError, match="QUANT_UNSUPPORTED"):
        bind(report_for(small_problem(quant="NVFP4", quant_group_size=32)), random_weights(small_problem()))


def test_a_winner_that_no_plugin_here_has():
    with pytest.raises(KeyError, match=r"moe_core\.torch\.reference_loop\.any"):
        bind(report_for(small_problem()), catalog=Catalog.of(STRATEGIES))


def test_a_declared_candidate_without_an_adapter():
    bare = Catalog.of((VANILLA.evolve(factory=None), *STRATEGIES))
    report = report_for(small_problem(), catalog=bare, request=MoERequest(require_adapter=False))
    with pytest.raises(BindError, match="is declared, but has no adapter"):
        bind(report, catalog=bare)


@pytest.mark.parametrize("factory", ["moe_plugins.absent:Backend", "moe_plugins.vanilla.backend:Absent"])
def test_a_factory_that_cannot_be_loaded(factory):
    broken = Catalog.of((VANILLA.evolve(factory=factory), *STRATEGIES))
    with pytest.raises(BindError, match=f"the factory {factory} of moe_core.torch.reference_loop.any cannot be loaded"):
        bind(report_for(small_problem(), catalog=broken), catalog=broken)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_report_for_a_gpu_on_a_machine_without_one():
    report = report_for(small_problem(), environment=MoEEnvironment(device=Device.CUDA, sm=90))
    with pytest.raises(BindError, match="the report is for cuda, and torch finds no CUDA device here"):
        bind(report)


@pytest.mark.parametrize(("device", "asked"), [(Device.CPU, "cuda"), (Device.CUDA, "cpu")])
def test_a_report_for_another_kind_of_device(device, asked):
    report = report_for(small_problem(), environment=MoEEnvironment(device=device))
    with pytest.raises(BindError, match=f"the report is for {device}, and device is {asked}"):
        bind(report, device=asked)


def test_an_unknown_device_must_be_given():
    report = report_for(small_problem(), environment=MoEEnvironment())
    with pytest.raises(BindError, match="give device"):
        bind(report)
    assert bind(report, device="cpu").report is report


def test_several_ranks_need_groups():
    with pytest.raises(BindError, match=r"for 2 ranks \(ep_size 2, tp_size 1\): give groups=ParallelGroups"):
        bind(report_for(small_problem(), ep_size=2))


def test_an_unknown_element_type_and_a_method_without_a_name():
    with pytest.raises(BindError, match="routing is Unspecified: the model routes by itself"):
        bind(report_for(small_problem(routing="Unspecified")))
    with pytest.raises(BindError, match="dtype_act is unknown"):
        bind(report_for(small_problem(dtype_act=None)), random_weights(small_problem()))


def test_the_layer_moves_no_weights_even_for_a_backend_that_could():
    able = VANILLA.evolve(capabilities=VANILLA.capabilities.evolve(supports_dwdp=True))
    catalog = Catalog.of((able, *STRATEGIES))
    with pytest.raises(BindError, match="resolve without DWDP"):
        bind(report_for(small_problem(), catalog=catalog, dwdp_size=2), catalog=catalog)


def test_a_balancer_and_the_report_agree():
    with pytest.raises(BindError, match="balancer: found a balancer, and the report says eplb_enabled=False"):
        bind(report_for(small_problem()), balancer=object())


def test_unknown_sizes_and_methods():
    weights = random_weights(small_problem())
    with pytest.raises(BindError, match="hidden_size is unknown"):
        bind(report_for(small_problem(hidden_size=None)), weights)
    with pytest.raises(ValueError, match="routing=None"):
        bind(report_for(small_problem(routing=None)), weights)


def test_a_strategy_is_made_last_so_that_no_failure_leaves_one_behind():
    absent = comm_none.CANDIDATES[0].evolve(factory="moe_plugins.absent:Strategy")
    catalog = Catalog.of((VANILLA, absent))
    with pytest.raises(ValueError, match="routing=None"):
        bind(report_for(small_problem(routing=None), catalog=catalog), catalog=catalog)
    with pytest.raises(BindError, match=r"moe_plugins\.absent:Strategy"):
        bind(report_for(small_problem(), catalog=catalog), catalog=catalog)


def test_every_misfit_of_the_weights_is_told_at_once():
    weights = random_weights(small_problem(num_experts=4, bias=True), dtype=torch.float32)
    with pytest.raises(BindError, match=r"cannot bind moe_core\.torch\.reference_loop\.any:") as caught:
        bind(report_for(small_problem()), weights)
    text = str(caught.value)
    for line in (
        "w1_EIH: found [4, 32, 64], needed [8, 32, 64]",
        "w2_EHI: found torch.float32, needed torch.bfloat16",
        "b1_EI, b3_EI, b2_EH: found a bias, needed none: the problem says bias=False",
    ):
        assert line in text


def test_every_misfit_of_quantized_weights_is_told_at_once():
    weights = random_weights(small_problem(quant="NVFP4", num_experts=4, bias=True), dtype=torch.float32)
    with pytest.raises(BindError) as caught:
        bind(report_for(small_problem(quant="NVFP4")), weights)
    text = str(caught.value)
    for line in (
        "w1_EIH.data: found [4, 32, 32], needed [8, 32, 32]",
        "w1_EIH.scale: found [4, 32, 4], needed [8, 32, 4]",
        "w2_EHI.global_scale: found [4, 1, 1], needed [8, 1, 1]",
        "b1_EI: found torch.float32, needed torch.bfloat16",
        "b1_EI, b3_EI, b2_EH: found a bias, needed none: the problem says bias=False",
    ):
        assert line in text


def test_plain_weights_for_a_quantized_problem_and_the_reverse():
    plain, quantized = small_problem(), small_problem(quant="FP8")
    with pytest.raises(BindError, match=r"w1_EIH: found torch\.bfloat16, needed e4m3 with float scales per all x all"):
        bind(report_for(quantized), random_weights(plain))
    with pytest.raises(BindError, match=r"w1_EIH: found e4m3 .*, needed a matrix that is not quantized"):
        bind(report_for(plain), random_weights(quantized))


def test_a_format_that_cannot_be_read():
    willing = Catalog.of((VANILLA.evolve(requirements=()), *STRATEGIES))
    for quant, group_size, message in (
        (None, None, "quant is unknown; give it in the problem"),
        ("NVFP4", 32, "NVFP4 has groups of 16: found quant_group_size 32"),
    ):
        report = report_for(small_problem(quant=quant, quant_group_size=group_size), catalog=willing)
        with pytest.raises(BindError, match=message):
            bind(report, random_weights(small_problem()), catalog=willing)


def test_a_bias_that_the_backend_would_ignore():
    unbiased = VANILLA.evolve(capabilities=VANILLA.capabilities.evolve(supports_expert_bias=False))
    catalog = Catalog.of((unbiased, *STRATEGIES))
    report = report_for(small_problem(bias=None), catalog=catalog)
    with pytest.raises(BindError, match="has no expert bias"):
        bind(report, random_weights(small_problem(bias=True)), catalog=catalog)


def test_a_bias_that_the_problem_promised():
    with pytest.raises(BindError, match="found no bias, needed one"):
        bind(report_for(small_problem(bias=True)), random_weights(small_problem()))


@pytest.mark.parametrize(
    ("fields", "arguments", "message"),
    [
        ({"routing_bias": True}, {}, "router_bias: found nothing"),
        ({}, {"router_bias": torch.zeros(8)}, "router_bias: found a tensor"),
        ({"routing_bias": True}, {"router_bias": torch.zeros(8, dtype=torch.bfloat16)}, "found torch.bfloat16"),
        ({"routing_bias": True}, {"router_bias": torch.zeros(3)}, r"found \[3\], needed \[8\]"),
        ({"hashed_routing": True}, {}, "routing_table: found nothing"),
        ({}, {"routing_table": torch.zeros(9, 3)}, "routing_table: found a tensor"),
    ],
)
def test_a_router_that_does_not_fit(fields, arguments, message):
    problem = small_problem(routing=Method.DEEPSEEK_V4, **fields)
    with pytest.raises(BindError, match=message):
        bind(report_for(problem), **arguments)


@pytest.mark.parametrize(("rank", "slots"), [(0, (0, 3)), (1, (3, 6)), (2, (6, 8))])
def test_a_rank_holds_its_run_of_slots(rank, slots):
    report = report_for(small_problem(), ep_size=3)
    groups = ParallelGroups(rank=rank, ep_rank=rank)
    binding = binding_of(report, VANILLA, device=None, groups=groups)
    assert (binding.slot_start, binding.slot_end) == slots
    assert binding.num_local_slots == slots[1] - slots[0]


@pytest.mark.parametrize(("rank", "width"), [(0, 11), (1, 11), (2, 10)])
def test_the_last_tensor_parallel_shard_may_be_narrower(rank, width):
    report = report_for(small_problem(), tp_size=3)
    groups = ParallelGroups(rank=rank, tp_rank=rank)
    binding = binding_of(report, VANILLA, device=None, groups=groups)
    assert binding.intermediate_size == width
    assert random_weights(small_problem()).of_tp_rank(rank, 3).w1_EIH.shape[1] == width


def test_token_buckets_that_route_by_different_kernels_are_refused():
    (router,) = routing_torch.CANDIDATES
    catalog = Catalog.of((*CATALOG.candidates, router))
    report = report_for(small_problem(), catalog=catalog, request=MoERequest(token_buckets=(8, 64)))
    bind(report, catalog=catalog).destroy()
    small, *_ = (d for d in report.decisions if d.kind is CandidateKind.ROUTING)
    other = small.evolve(winner="moe_core.torch.another_router.any")
    decisions = tuple(other if d is small else d for d in report.decisions)
    with pytest.raises(BindError, match="by another kernel in each token bucket"):
        bind(report.evolve(decisions=decisions), catalog=catalog)
