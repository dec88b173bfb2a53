"""The layer runs what the report says: routing, dispatch, experts, combine."""

import pytest
import torch

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.catalog import Catalog
from moe_core.contract.declare import AtMost, Reason, need
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.problem import MoEProblem
from moe_core.contract.request import MoERequest
from moe_core.contract.vocabulary import CandidateKind, Device, DType
from moe_core.contract.vocabulary import RoutingMethodType as Method
from moe_core.execution import TORCH_DTYPE, BindError
from moe_core.layer import ConfigurableMoE
from moe_core.reference import reference_moe
from moe_core.registry import load_catalog
from moe_core.resolve import resolve_moe_impl
from moe_core.routing import route
from moe_core.testing.nosync import no_host_sync
from moe_core.testing.numerics import assert_bitwise_equal, assert_close, tolerance_in
from moe_core.testing.problems import ACTIVATIONS, small_problem
from moe_core.testing.weights import random_weights
from moe_plugins import comm_all_gather, comm_none, routing_torch, torch_grouped, vanilla

CATALOG = Catalog.of(
    (*vanilla.CANDIDATES, *torch_grouped.CANDIDATES, *comm_none.CANDIDATES, *comm_all_gather.CANDIDATES)
)
CPU = MoEEnvironment(device=Device.CPU, sm=0).with_packages(torch="2.13.0")
BACKENDS = ("VANILLA", "TORCH_GROUPED")
TOLERANCE = 8e-3

ROUTINGS = {
    "renormalize": {"routing": Method.RENORMALIZE},
    "default": {"routing": Method.DEFAULT},
    "deepseek_v3": {
        "routing": Method.DEEPSEEK_V3,
        "num_expert_groups": 4,
        "topk_group": 2,
        "routed_scaling_factor": 2.5,
        "routing_bias": True,
    },
    "deepseek_v4_hashed": {"routing": Method.DEEPSEEK_V4, "hashed_routing": True},
    "llama4": {"routing": Method.LLAMA4, "top_k": 1, "apply_router_weight_on_input": True},
    "minimax": {"routing": Method.MINIMAX2, "routing_bias": True},
    "sparse_mixer": {"routing": Method.SPARSE_MIXER, "top_k": 2},
}


def report_for(problem, backend="auto", **deployment):
    deployment = MoEDeployment(environment=CPU, **deployment)
    return resolve_moe_impl(problem, deployment, request=MoERequest(backend=backend), candidates=CATALOG)


class Scene:
    """A problem with random experts and router, and what the layer should answer."""

    def __init__(self, problem: MoEProblem) -> None:
        self.problem = problem
        self.dtype = TORCH_DTYPE[problem.dtype_act]
        self.weights = random_weights(problem, dtype=self.dtype)
        generator = torch.Generator().manual_seed(7)
        self.router_bias = torch.randn(problem.num_experts, generator=generator) if problem.routing_bias else None
        table = torch.rand(50, problem.num_experts, generator=generator).argsort(dim=1)[:, : problem.top_k].int()
        self.routing_table = table if problem.hashed_routing else None

    def layer(self, backend="auto"):
        return ConfigurableMoE.from_report(
            report_for(self.problem, backend),
            self.weights,
            router_bias=self.router_bias,
            routing_table=self.routing_table,
            catalog=CATALOG,
        )

    def inputs(self, *shape):
        generator = torch.Generator().manual_seed(sum(shape))
        x = torch.randn(*shape, self.problem.hidden_size, generator=generator).to(self.dtype)
        logits = torch.randn(*shape, self.problem.num_experts, generator=generator)
        return x, logits, torch.randint(50, shape, generator=generator) if self.problem.hashed_routing else None

    def expected(self, x, logits, input_ids=None):
        ids, weights = route(self.problem, logits, self.router_bias, input_ids, self.routing_table)
        return reference_moe(self.problem, x, self.weights, ids, weights)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_answers_as_the_twin(backend, routing):
    scene = Scene(small_problem(**ROUTINGS[routing]))
    with scene.layer(backend) as layer:
        for tokens in (1, 7, 64):
            inputs = scene.inputs(tokens)
            actual = layer(*inputs)
            assert actual.dtype is scene.dtype
            assert_close(actual, scene.expected(*inputs), TOLERANCE)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16])
@pytest.mark.parametrize("activation", ["swiglu_bias", "relu2", "swiglu_clamp_after_silu"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_answers_in_the_element_type_of_the_problem(backend, activation, dtype):
    scene = Scene(small_problem(dtype_act=dtype, **ACTIVATIONS[activation]))
    inputs = scene.inputs(16)
    with scene.layer(backend) as layer:
        assert_close(layer(*inputs), scene.expected(*inputs), tolerance_in(scene.dtype, TOLERANCE))


@pytest.mark.parametrize("backend", BACKENDS)
def test_leading_dimensions_are_kept(backend):
    scene = Scene(small_problem(**ROUTINGS["deepseek_v4_hashed"]))
    x, logits, input_ids = scene.inputs(2, 3)
    with scene.layer(backend) as layer:
        actual = layer(x, logits, input_ids)
        assert actual.shape == (2, 3, 64)
        assert_bitwise_equal(actual.view(6, 64), layer(x.view(6, 64), logits.view(6, 8), input_ids.view(6)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_tokens_give_no_rows_and_gradients_exist(backend):
    scene = Scene(small_problem())
    x, logits, _ = scene.inputs(0)
    with scene.layer(backend) as layer:
        x.requires_grad_()
        actual = layer(x, logits)
        assert (actual.shape, actual.dtype) == ((0, 64), torch.bfloat16)
        actual.sum().backward()
        assert x.grad.shape == (0, 64)
        assert layer(*scene.inputs(2, 0)[:2]).shape == (2, 0, 64)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_kernel_is_not_called_without_rows(backend, monkeypatch):
    scene = Scene(small_problem())
    with scene.layer(backend) as layer:
        monkeypatch.setattr(layer.backend, "run_moe", lambda context: pytest.fail("called without rows"))
        layer(*scene.inputs(0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_reach_rows_logits_and_weights(backend):
    scene = Scene(small_problem(dtype_act=DType.FLOAT32))
    x, logits, _ = scene.inputs(8)
    leaves = [
        x.requires_grad_(),
        logits.requires_grad_(),
        *scene.weights.map(lambda t: t.requires_grad_()).tensors().values(),
    ]
    with scene.layer(backend) as layer:
        actual = torch.autograd.grad(layer(x, logits).square().sum(), leaves)
    expected = torch.autograd.grad(scene.expected(x, logits).square().sum(), leaves)
    for found, wanted in zip(actual, expected, strict=True):
        assert_close(found, wanted, 1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_repeats_bitwise(backend):
    scene = Scene(small_problem())
    inputs = scene.inputs(33)
    with scene.layer(backend) as layer, scene.layer(backend) as again:
        assert_bitwise_equal(layer(*inputs), layer(*inputs))
        assert_bitwise_equal(again(*inputs), layer(*inputs))


@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_host_waits_for_nothing(routing):
    scene = Scene(small_problem(**ROUTINGS[routing]))
    with scene.layer("TORCH_GROUPED") as layer, torch.no_grad():
        inputs = scene.inputs(33)
        with no_host_sync():
            layer(*inputs, is_padding=torch.arange(33) > 30)


def test_the_routed_scaling_factor_scales_the_routed_part_alone():
    plain, scaled = (Scene(small_problem(dtype_act=DType.FLOAT32, routed_scaling_factor=s)) for s in (None, 2.5))
    inputs = plain.inputs(8)
    shared = torch.randn(8, 64)
    assert_close(scaled.layer()(*inputs) + shared, 2.5 * plain.layer()(*inputs) + shared, 1e-6)


def test_auto_runs_the_winner_of_the_report():
    layer = Scene(small_problem()).layer()
    assert layer.report.winner().identity == "moe_core.torch.grouped_mm.none"
    assert type(layer.backend).__name__ == "GroupedMM"
    odd = Scene(small_problem(hidden_size=37)).layer()
    assert type(odd.backend).__name__ == "ReferenceLoop"


def test_the_routing_decision_says_what_routes():
    scene = Scene(small_problem())
    fused = MoECandidate(
        identity="acme.cuda.one_kernel.any", kind="routing", family="FUSED_ROUTING", title="a stub", priority=200,
        requirements=(need(Reason.TOPK_UNSUPPORTED, "top_k", AtMost(value=2)),),
        factory="moe_plugins.absent:Router",
    )  # fmt: skip
    catalog = Catalog.of((*CATALOG.candidates, *routing_torch.CANDIDATES, fused))
    report = resolve_moe_impl(scene.problem, MoEDeployment(environment=CPU), candidates=catalog)
    decision = report.decision(CandidateKind.ROUTING)
    assert decision.winner == "moe_core.torch.select_experts.any"
    assert [(r.fact, r.found, r.needed) for r in decision.rejections_of(fused.identity)] == [("top_k", 3, "at most 2")]
    inputs = scene.inputs(5)
    with ConfigurableMoE.from_report(report, scene.weights, catalog=catalog) as layer:
        assert_bitwise_equal(layer(*inputs), scene.layer()(*inputs))
    able = resolve_moe_impl(scene.problem.evolve(top_k=2), MoEDeployment(environment=CPU), candidates=catalog)
    with pytest.raises(BindError, match=r"moe_plugins\.absent:Router of acme\.cuda\.one_kernel\.any cannot be loaded"):
        ConfigurableMoE.from_report(able, scene.weights, catalog=catalog)


def test_router_bias_and_table_follow_the_layer_and_stay_out_of_its_state():
    layer = Scene(small_problem(**ROUTINGS["minimax"])).layer()
    assert [name for name, _ in layer.named_buffers()] == ["router.bias"]
    assert layer.state_dict() == {}


def test_destroying_is_final_and_may_be_repeated():
    scene = Scene(small_problem())
    layer = scene.layer()
    layer.destroy()
    layer.destroy()
    with pytest.raises(RuntimeError, match="destroyed"):
        layer(*scene.inputs(2))


def test_hidden_states_that_do_not_fit_are_refused():
    layer = Scene(small_problem()).layer()
    with pytest.raises(ValueError, match=r"\[3, 32\] of torch.bfloat16, needed \[..., 64\] of torch.bfloat16"):
        layer(torch.zeros(3, 32, dtype=torch.bfloat16), torch.zeros(3, 8))
    with pytest.raises(ValueError, match=r"of torch\.float32, needed"):
        layer(torch.zeros(2, 64), torch.zeros(2, 8))


def test_the_installed_plugins_are_the_default_catalog():
    problem = small_problem()
    report = resolve_moe_impl(problem, MoEDeployment(environment=CPU), candidates=load_catalog())
    with ConfigurableMoE.from_report(report, random_weights(problem)) as layer:
        assert layer(torch.zeros(2, 64, dtype=torch.bfloat16), torch.zeros(2, 8)).count_nonzero() == 0
