"""Routing and experts in one recording: the same bits as one after the other, also captured and with other weights."""

import pytest
import torch

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.vocabulary import CudaGraphMode
from moe_core.environment import current
from moe_core.layer import ConfigurableMoE
from moe_core.registry import load_registry
from moe_core.resolve import resolve_moe_impl
from moe_core.testing.numerics import assert_bitwise_equal
from moe_core.testing.problems import small_problem
from moe_core.testing.weights import random_weights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]

PROBLEM = small_problem(num_experts=32, top_k=4, hidden_size=512, intermediate_size=256)
ROUTINGS = {
    "softmax": {"routing": "Renormalize", "routing_bias": False},
    "bias": {"routing": "MiniMax2", "routing_bias": True},
}


@pytest.fixture(params=ROUTINGS)
def made(request):
    problem = PROBLEM.evolve(**ROUTINGS[request.param])
    registry = load_registry()
    deployment = MoEDeployment(environment=current(registry), max_num_tokens=4096, cuda_graph=CudaGraphMode.FULL)
    report = resolve_moe_impl(problem, deployment, candidates=registry.catalog)
    assert report.winner().identity == "moe_core.triton.experts.none"
    bias = torch.rand(32, device="cuda") if problem.routing_bias else None
    weights = random_weights(problem).to("cuda")
    with ConfigurableMoE.from_report(report, weights, catalog=registry.catalog, router_bias=bias) as layer:
        yield layer, weights


def inputs(num_tokens):
    x = torch.randn(num_tokens, 512, device="cuda", dtype=torch.bfloat16)
    return x, torch.randn(num_tokens, 32, device="cuda", dtype=torch.bfloat16)


@torch.no_grad()
@pytest.mark.parametrize("num_tokens", [1, 4, 64, 300, 2000])
def test_equals_one_after_the_other(made, num_tokens):
    layer, weights = made
    for _ in range(3):  # compiled, recorded, repeated
        x, logits = inputs(num_tokens)
        assert_bitwise_equal(layer(x, logits), layer(x, logits, all_rank_num_tokens=(num_tokens,)))
    layer.load_weights(weights.map(lambda t: t.roll(1, dims=0)))
    x, logits = inputs(num_tokens)
    assert_bitwise_equal(layer(x, logits), layer(x, logits, all_rank_num_tokens=(num_tokens,)))


@torch.no_grad()
@pytest.mark.parametrize("num_tokens", [1, 64])
def test_is_captured(made, num_tokens):
    layer, _ = made
    x, logits = inputs(num_tokens)
    layer(x, logits)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = layer(x, logits)
    for seen, new in zip((x, logits), inputs(num_tokens), strict=True):
        seen.copy_(new)
    graph.replay()
    assert_bitwise_equal(captured, layer(x, logits, all_rank_num_tokens=(num_tokens,)))


@torch.no_grad()
def test_logits_elsewhere_are_refused(made):
    layer, _ = made
    x, logits = inputs(4)
    for _ in range(2):
        layer(x, logits)
    with pytest.raises((ValueError, RuntimeError)):
        layer(x, logits.cpu())
    layer(x, logits)
