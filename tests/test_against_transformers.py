"""The layer answers as transformers' own MoE blocks do, at tiny sizes."""

import importlib

import pytest
import torch

from moe_core.contract.catalog import Catalog
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.request import MoERequest
from moe_core.contract.vocabulary import Device, DType
from moe_core.contract.vocabulary import RoutingMethodType as Method
from moe_core.layer import ConfigurableMoE
from moe_core.resolve import resolve_moe_impl
from moe_core.routing import route
from moe_core.routing.sparse_mixer import sparse_mixer
from moe_core.testing.numerics import assert_close
from moe_core.testing.problems import ACTIVATIONS, small_problem
from moe_core.weights import ExpertWeights
from moe_plugins import comm_none, torch_grouped, vanilla

pytest.importorskip("transformers")

CATALOG = Catalog.of((*vanilla.CANDIDATES, *torch_grouped.CANDIDATES, *comm_none.CANDIDATES))
CPU = MoEEnvironment(device=Device.CPU, sm=0).with_packages(torch="2.13.0")
E, K, H, I, T = 8, 3, 64, 32, 11  # noqa: E741 - shape letters
SIZES = {"hidden_size": H, "num_experts_per_tok": K, "num_local_experts": E, "num_experts": E}


def module(model, name, config_name, **fields):
    """A module of a model in transformers, with random weights."""
    home = f"transformers.models.{model}"
    config = getattr(importlib.import_module(f"{home}.configuration_{model}"), config_name)(**SIZES | fields)
    config._experts_implementation = "eager"
    made = getattr(importlib.import_module(f"{home}.modeling_{model}"), name)(config)
    generator = torch.Generator().manual_seed(0)
    for tensor in (*made.parameters(), *made.buffers()):
        if tensor.is_floating_point():
            tensor.data.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
    return made


def stacked(experts):
    gate, up = experts.gate_up_proj.data.chunk(2, dim=1)
    return ExpertWeights(w1_EIH=gate, w3_EIH=up, w2_EHI=experts.down_proj.data)


def interleaved(experts):
    fc1, bias = experts.gate_up_proj.data.transpose(1, 2), experts.gate_up_proj_bias.data
    return ExpertWeights(
        w1_EIH=fc1[:, ::2],
        w3_EIH=fc1[:, 1::2],
        w2_EHI=experts.down_proj.data.transpose(1, 2),
        b1_EI=bias[:, ::2],
        b3_EI=bias[:, 1::2],
        b2_EH=experts.down_proj_bias.data,
    )


GROUPS = {"n_group": 4, "topk_group": 2}
OUR_GROUPS = {"num_expert_groups": 4, "topk_group": 2}
BLOCKS = {
    "mixtral": ("Mixtral", {"intermediate_size": I}, {}),
    "qwen3_moe": ("Qwen3Moe", {"moe_intermediate_size": I, "norm_topk_prob": False}, {"routing": Method.DEFAULT}),
    "deepseek_v3": (
        "DeepseekV3",
        {"moe_intermediate_size": I, "n_routed_experts": E, "routed_scaling_factor": 2.5, **GROUPS},
        {"routing": Method.DEEPSEEK_V3, "routed_scaling_factor": 2.5, "routing_bias": True, **OUR_GROUPS},
    ),
    "gpt_oss": ("GptOss", {"intermediate_size": I}, ACTIVATIONS["swiglu_bias"]),
}
ROUTERS = {
    "deepseek_v2": (
        ("DeepseekV2TopkRouter", "DeepseekV2Config"),
        {"n_routed_experts": E, "topk_method": "group_limited_greedy", "routed_scaling_factor": 16.0, **GROUPS},
        {"routing": Method.GROUPED_SOFTMAX, "routed_scaling_factor": 16.0, **OUR_GROUPS},
    ),
    "deepseek_v4": (
        ("DeepseekV4TopKRouter", "DeepseekV4Config"),
        {"routed_scaling_factor": 1.5},
        {"routing": Method.DEEPSEEK_V4, "routed_scaling_factor": 1.5},
    ),
    "ernie4_5_moe": (
        ("Ernie4_5_MoeTopKRouter", "Ernie4_5_MoeConfig"),
        {"moe_num_experts": E, "moe_k": K},
        {"routing": Method.RENORMALIZE},
    ),
    "minimax_m3_vl": (("MiniMaxM3VLTopKRouter", "MiniMaxM3VLTextConfig"), {}, {"routing": Method.MINIMAX3}),
}


def dense(ids, weights):
    """Weights ``[T, E]``: in which order experts were chosen is not compared."""
    return torch.zeros(len(ids), E).scatter(1, ids.long(), weights)


@pytest.mark.parametrize("backend", ["VANILLA", "TORCH_GROUPED"])
@pytest.mark.parametrize("model", BLOCKS)
def test_blocks(model, backend):
    prefix, their_fields, our_fields = BLOCKS[model]
    router_name = "TopkRouter" if model == "deepseek_v3" else "TopKRouter"
    router, experts = (module(model, prefix + n, f"{prefix}Config", **their_fields) for n in (router_name, "Experts"))
    problem = small_problem(dtype_act=DType.FLOAT32, **our_fields)
    report = resolve_moe_impl(
        problem, MoEDeployment(environment=CPU), request=MoERequest(backend=backend), candidates=CATALOG
    )
    bias = router.e_score_correction_bias if problem.routing_bias else None
    weights = (interleaved if model == "gpt_oss" else stacked)(experts)
    x = torch.randn(T, H, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), ConfigurableMoE.from_report(report, weights, router_bias=bias, catalog=CATALOG) as layer:
        logits, scales, ids = router(x)
        assert_close(layer(x, logits), experts(x, ids, scales), 1e-6)


@pytest.mark.parametrize("model", ROUTERS)
def test_routers(model):
    names, their_fields, our_fields = ROUTERS[model]
    router = module(model, *names, **their_fields)
    tensors = {**dict(router.named_parameters()), **dict(router.named_buffers())}
    bias = next((t.flatten() for name, t in tensors.items() if "bias" in name), None)
    with torch.no_grad():
        logits, scales, ids = router(torch.randn(T, H, generator=torch.Generator().manual_seed(1)))
        actual = dense(*route(small_problem(**our_fields), logits, bias))
    assert_close(actual, dense(ids, scales), 1e-6)


def test_sparse_mixer():
    theirs = importlib.import_module("transformers.models.phimoe.modeling_phimoe").sparsemixer
    logits = torch.randn(T, E, generator=torch.Generator().manual_seed(1))
    weights, ids = theirs(logits, jitter_eps=0.2, training=False)
    assert_close(dense(*sparse_mixer(logits, top_k=2, eps=0.2)), dense(ids, weights), 1e-6)
