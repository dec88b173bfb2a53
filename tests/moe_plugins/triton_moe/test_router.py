"""The routing kernels answer as the twin does: the same experts in the same order, and their weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import RoutingMethodType as Method
from moe_core.execution import Binding, bind_factory
from moe_core.routing import route
from moe_core.routing.route import SCORES
from moe_core.testing.numerics import assert_close, poisoned_memory
from moe_plugins.triton_moe.routing_candidates import CANDIDATES

(CANDIDATE,) = CANDIDATES
ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
INF = torch.inf

BIASED = tuple(SCORES)
ALL = (*BIASED, Method.SPARSE_MIXER)
GROUPED = (Method.DEEPSEEK_V3, Method.GROUPED_SOFTMAX)
FLOATS = (torch.bfloat16, torch.float16, torch.float32)

saturates = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
"""A sigmoid is zero by an infinite power of e, of which the interpreter warns."""


def router(problem):
    sm = 10 * torch.cuda.get_device_capability()[0] if ON_GPU else 0
    deployment = MoEDeployment(environment=MoEEnvironment(device=DEVICE, sm=sm))
    return bind_factory(CANDIDATE)(Binding(CANDIDATE, problem, deployment, torch.device(DEVICE), torch.bfloat16))


def problem_of(method, num_experts, top_k, **fields):
    return MoEProblem(routing=method, num_experts=num_experts, top_k=top_k, **fields)


def assert_as_the_twin(problem, logits, bias=None, input_ids=None, table=None):
    inputs = [None if tensor is None else tensor.to(DEVICE) for tensor in (logits, bias, input_ids, table)]
    expected_ids, expected = route(problem, *inputs)
    with poisoned_memory():
        ids, weights = router(problem)(*inputs)
    assert ids.dtype is torch.int32
    assert weights.dtype is torch.float32
    assert ids.tolist() == expected_ids.tolist()
    assert_close(weights, expected, 1e-6)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("method", ALL)
def test_every_method_in_every_float_type(method, dtype):
    assert_as_the_twin(problem_of(method, 32, 4, routed_scaling_factor=2.5), randn(3, 32).to(dtype))


def test_wider_logits_are_routed_in_float32():
    assert_as_the_twin(problem_of(Method.RENORMALIZE, 16, 2), randn(2, 16).double())


@pytest.mark.parametrize("method", BIASED)
def test_a_bias_chooses_and_does_not_weigh(method):
    assert_as_the_twin(problem_of(method, 24, 5), randn(3, 24).bfloat16(), randn(24, seed=1))


@pytest.mark.parametrize(
    "bias", [None, randn(24, seed=1), -2 - randn(24, seed=1).abs()], ids=["none", "any", "below 0"]
)
@pytest.mark.parametrize("group_score", ["max", "top2_sum"])
@pytest.mark.parametrize("groups", [(2, 1), (3, 2), (8, 5), (24, 7)], ids=str)
@pytest.mark.parametrize("method", GROUPED)
def test_the_best_of_the_best_groups(method, groups, group_score, bias):
    fields = {"num_expert_groups": groups[0], "topk_group": groups[1], "group_score": group_score}
    assert_as_the_twin(problem_of(method, 24, 5, **fields), randn(3, 24), bias)


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("method", [Method.GROUPED_SOFTMAX, Method.DEEPSEEK_V3, Method.SQRT_SOFTPLUS])
def test_renormalizing_is_a_choice(method, renormalize):
    assert_as_the_twin(problem_of(method, 16, 3, renormalize=renormalize), randn(2, 16))


@pytest.mark.parametrize("integer", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("method", [Method.DEEPSEEK_V4, Method.RENORMALIZE, Method.DEFAULT])
def test_a_hashed_router_reads_the_table(method, integer):
    table = torch.stack([randn(12, seed=row).argsort()[:3] for row in range(7)]).to(integer)
    token_ids = torch.tensor([6, 0, 3, 3], dtype=integer)
    assert_as_the_twin(problem_of(method, 12, 3, hashed_routing=True), randn(4, 12), None, token_ids, table)


@pytest.mark.parametrize(("num_experts", "top_k"), [(1, 1), (2, 1), (3, 3), (60, 4), (160, 6), (33, 32)])
@pytest.mark.parametrize("method", [Method.RENORMALIZE, Method.DEFAULT, Method.MINIMAX2, Method.SPARSE_MIXER])
def test_sizes_that_are_no_powers_of_two(method, num_experts, top_k):
    for dtype in (torch.float16, torch.float32):
        assert_as_the_twin(problem_of(method, num_experts, top_k), randn(2, num_experts).to(dtype))


def test_many_experts():
    assert_as_the_twin(problem_of(Method.DEEPSEEK_V3, 512, 22), randn(2, 512).bfloat16(), randn(512, seed=1))
    assert_as_the_twin(problem_of(Method.RENORMALIZE, 1024, 32), randn(2, 1024).bfloat16())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("method", ALL)
def test_ties_go_to_the_lower_id(method, dtype):
    logits = torch.tensor([[0.5] * 40, [0.0, -0.0] * 20, [-1.0, 2.0, 2.0, -3.0, 2.0] * 8]).to(dtype)
    assert_as_the_twin(problem_of(method, 40, 6), logits)
    if method in GROUPED:
        assert_as_the_twin(problem_of(method, 40, 6, num_expert_groups=4, topk_group=2), logits)


@saturates
def test_scores_that_saturate_are_told_apart_by_logits():
    logits = torch.tensor([[20.0, 40.0, 30.0, 10.0], [-300.0, 0.0, -250.0, -200.0]])
    for method in (Method.LLAMA4, Method.SIGMOID_RENORM, Method.RENORMALIZE, Method.SQRT_SOFTPLUS):
        assert_as_the_twin(problem_of(method, 4, 2), logits)


@saturates
@pytest.mark.parametrize("method", BIASED)
def test_scores_that_all_underflow_give_no_nan(method):
    assert_as_the_twin(problem_of(method, 4, 2), torch.full((1, 4), -1000.0))


@saturates
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("method", ALL)
def test_minus_infinity_is_an_expert_that_is_not_there(method, dtype):
    assert_as_the_twin(problem_of(method, 6, 3), torch.tensor([[-INF, 1.0, -INF, 0.5, -INF, -2.0]]).to(dtype))
    if method is not Method.SPARSE_MIXER:
        logits = torch.tensor([[-INF, -INF, 1.0, -INF, -INF, -INF]]).to(dtype)
        assert_as_the_twin(problem_of(method, 6, 3), logits)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_not_a_number_is_chosen_first(dtype):
    logits = torch.tensor([[1.0, -torch.nan, INF, torch.nan, 5.0]]).to(dtype)
    problem = problem_of(Method.SIGMOID_RENORM, 5, 4)
    ids, _ = router(problem)(logits.to(DEVICE), None, None, None)
    assert ids.tolist() == route(problem, logits)[0].tolist() == [[1, 3, 2, 4]]


@settings(max_examples=40)
@given(data=st.data())
def test_whatever_the_numbers(data):
    method = data.draw(st.sampled_from(ALL))
    groups = data.draw(st.integers(1, 4)) if method in GROUPED else 1
    num_experts = groups * data.draw(st.integers(1, 6))
    kept = data.draw(st.integers(1, groups))
    top_k = data.draw(st.integers(1, kept * num_experts // groups))
    # Quarters: as many ties as differences, and none that rounding could decide.
    values = st.integers(-12, 12).map(lambda quarters: quarters / 4)
    logits = [[data.draw(values) for _ in range(num_experts)] for _ in range(data.draw(st.integers(1, 3)))]
    bias = None
    if method is not Method.SPARSE_MIXER and data.draw(st.booleans()):
        bias = torch.tensor([data.draw(values) for _ in range(num_experts)]) * 8
    fields = {"num_expert_groups": groups, "topk_group": kept} if method in GROUPED else {}
    dtype = data.draw(st.sampled_from(FLOATS))
    assert_as_the_twin(problem_of(method, num_experts, top_k, **fields), torch.tensor(logits).to(dtype), bias)


@pytest.mark.parametrize("method", ALL)
def test_no_tokens(method):
    ids, weights = router(problem_of(method, 8, 2))(torch.empty(0, 8, device=DEVICE), None, None, None)
    assert ids.shape == weights.shape == (0, 2)


def test_rows_of_a_wider_tensor():
    wide = randn(3, 20)
    assert_as_the_twin(problem_of(Method.RENORMALIZE, 8, 2), wide[:, 5:13])


@pytest.mark.parametrize("method", ALL)
def test_gradients_are_those_of_the_twin(method):
    problem = problem_of(method, 8, 3, routed_scaling_factor=1.5)
    logits = randn(3, 8).to(DEVICE).requires_grad_()
    bias = None if method is Method.SPARSE_MIXER else randn(8, seed=1).to(DEVICE)
    upstream = randn(3, 3, seed=2).to(DEVICE)
    _, expected = route(problem, logits, bias)
    ids, weights = router(problem)(logits, bias, None, None)
    assert not ids.requires_grad
    (actual,), (wanted,) = (torch.autograd.grad(w, logits, upstream) for w in (weights, expected))
    assert_close(actual, wanted, 1e-6)


def test_inputs_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"router logits are \[2, 5\], needed \[tokens, 4\]"):
        router(problem_of(Method.DEFAULT, 4, 2))(torch.zeros(2, 5), None, None, None)


needs_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("num_tokens", [1, 128, 4099])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("method", ALL)
def test_real_sizes(method, dtype, num_tokens):
    fields = {"num_expert_groups": 8, "topk_group": 4} if method in GROUPED else {}
    assert_as_the_twin(problem_of(method, 256, 8, **fields), randn(num_tokens, 256).to(dtype))
    if method is not Method.SPARSE_MIXER:
        assert_as_the_twin(problem_of(method, 512, 10), randn(num_tokens, 512).to(dtype))


@pytest.mark.gpu
@needs_gpu
def test_replays_in_a_cuda_graph():
    problem = problem_of(Method.DEEPSEEK_V3, 256, 8, num_expert_groups=8, topk_group=4)
    logits, bias, routing = randn(64, 256).cuda(), randn(256, seed=1).cuda(), router(problem)
    routing(logits, bias, None, None)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ids, weights = routing(logits, bias, None, None)
    for seed in (2, 3):
        logits.copy_(randn(64, 256, seed=seed))
        graph.replay()
        expected_ids, expected = route(problem, logits, bias)
        assert ids.tolist() == expected_ids.tolist()
        assert_close(weights, expected, 1e-6)
