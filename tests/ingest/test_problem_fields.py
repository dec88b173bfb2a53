"""Fields of the problem, one key at a time."""

import pytest

from moe_core.contract.problem import ActivationConstant
from moe_core.contract.vocabulary import ActivationType, DType, GroupScore, RoutingMethodType
from moe_core.ingest import ingest

METHOD = RoutingMethodType
BASE = {
    "num_hidden_layers": 3,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "hidden_size": 64,
    "num_attention_heads": 4,
}


def problem(model_type="unheard_of", **keys):
    return ingest(BASE | {"model_type": model_type} | keys).groups[0].problem


def notes(model_type="unheard_of", **keys):
    return " / ".join(ingest(BASE | {"model_type": model_type} | keys).notes)


@pytest.mark.parametrize(
    ("keys", "dtype", "note"),
    [
        ({"torch_dtype": "float16"}, DType.FLOAT16, ""),
        ({"dtype": "float32"}, DType.FLOAT32, ""),
        ({"dtype": "torch.bfloat16"}, DType.BFLOAT16, ""),
        ({}, DType.BFLOAT16, "taken to be bfloat16"),
        ({"dtype": "auto"}, DType.BFLOAT16, "taken to be bfloat16"),
        ({"dtype": "float64"}, None, "float64, which is outside the vocabulary"),
    ],
)
def test_dtype(keys, dtype, note):
    assert problem(**keys).dtype_act is dtype
    about = [n for n in ingest(BASE | keys).notes if "activations" in n]
    assert len(about) == bool(note)
    assert all(note in n for n in about)


@pytest.mark.parametrize("key", ["moe_latent_size", "routed_expert_hidden_size", "moe_hidden_size"])
def test_latent_experts_are_narrower_than_the_model(key):
    latent = problem(**{key: 16})
    assert (latent.hidden_size, latent.model_hidden_size) == (16, 64)
    assert (problem().hidden_size, problem().model_hidden_size) == (64, 64)


@pytest.mark.parametrize(
    ("model_type", "keys", "count", "width"),
    [
        ("deepseek_v3", {"n_shared_experts": 2}, 2, 64),
        ("deepseek_v3", {"n_shared_experts": 0}, 0, None),
        ("deepseek_v3", {}, 0, None),
        ("unheard_of", {}, None, None),
        ("unheard_of", {"num_shared_experts": 1}, 1, 32),
        ("qwen2_moe", {"shared_expert_intermediate_size": 48}, 1, 48),
        ("minimax_m2", {"shared_intermediate_size": 0}, 0, None),
        ("nemotron_h", {"n_shared_experts": 1, "moe_shared_expert_intermediate_size": 80}, 1, 80),
        ("dots3_note", {"n_shared_experts": 2, "shared_experts_intermediate_size": 24}, 2, 48),
        ("step3p5", {"share_expert_dim": 40}, 1, 40),
        ("llama4", {}, 1, 32),
        ("hunyuan_v1_moe", {"num_shared_expert": [1, 1, 1]}, 1, 32),
    ],
)
def test_shared_experts(model_type, keys, count, width):
    found = problem(model_type, **keys)
    assert (found.num_shared_experts, found.shared_intermediate_size) == (count, width)


def test_sizes_may_differ_from_layer_to_layer():
    keys = {"moe_intermediate_size": [32, 64, 32], "num_experts_per_tok": [2, 2, 4], "num_shared_experts": [1, 2, 1]}
    groups = ingest(BASE | keys).groups
    sizes = [(g.problem.intermediate_size, g.problem.top_k, g.problem.shared_intermediate_size) for g in groups]
    assert [group.layers for group in groups] == [(0,), (1,), (2,)]
    assert sizes == [(32, 2, 32), (64, 2, 128), (32, 4, 32)]


def test_a_layer_may_have_keys_of_its_own():
    own = {"per_layer_config": {"1": {"num_experts": 4, "norm_topk_prob": False}, "2": {"sliding_window": 8}}}
    model = ingest(BASE | {"model_type": "qwen3_next"} | own)
    assert [(group.layers, group.problem.num_experts) for group in model.groups] == [((0, 2), 8), ((1,), 4)]
    assert model.problem_of(1).routing is METHOD.DEFAULT
    assert "per_layer_config" in {key.path for key in model.keys_read}
    with pytest.raises(KeyError, match="layer 7 is not MoE"):
        model.problem_of(7)


def test_block_configs_replace_keys_of_the_model():
    blocks = [
        {"block_type": "moe", "n_routed_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 16},
        {"block_type": "mamba"},
        {"block_type": "moe", "n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8},
    ]
    keys = {"num_hidden_layers": 3, "hidden_size": 64, "block_configs": blocks, "num_nextn_predict_layers": 1}
    groups = ingest({"model_type": "nemotron_h_puzzle"} | keys).groups
    sizes = [(g.layers, g.problem.num_experts, g.problem.intermediate_size) for g in groups]
    assert sizes == [((0,), 4, 16), ((2,), 2, 8), ((3,), 2, 8)]


@pytest.mark.parametrize(
    ("model_type", "keys", "kind", "constants"),
    [
        ("qwen3_moe", {}, ActivationType.SWIGLU, {}),
        ("qwen3_moe", {"hidden_act": "swish"}, ActivationType.SWIGLU, {}),
        ("unheard_of", {"hidden_act": "gelu"}, ActivationType.GEGLU, {}),
        ("unheard_of", {"hidden_act": "gelu_new"}, ActivationType.GEGLU_TANH, {}),
        ("gemma4", {"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"}, ActivationType.GEGLU_TANH, {}),
        ("nemotron_h", {"mlp_hidden_act": "relu2", "hidden_act": "silu"}, ActivationType.RELU2, {}),
        ("nemotron_h", {"mlp_hidden_act": "silu"}, ActivationType.SILU, {}),
        ("unheard_of", {"hidden_act": "relu2"}, ActivationType.RELU2, {}),
        ("deepseek_v4", {"swiglu_limit": 10}, ActivationType.SWIGLU, {"clamp": 10.0}),
        ("deepseek_v4", {"swiglu_limit": 0}, ActivationType.SWIGLU, {}),
        ("gpt_oss", {}, ActivationType.SWIGLU_BIAS, {"alpha": 1.702, "beta": 1.0, "clamp": 7.0}),
        (
            "gpt_oss",
            {"swiglu_limit": 5.0, "swiglu_alpha": 1.5},
            ActivationType.SWIGLU_BIAS,
            {"alpha": 1.5, "beta": 1.0, "clamp": 5.0},
        ),
        (
            "unheard_of",
            {"hidden_act": "swigluoai"},
            ActivationType.SWIGLU_BIAS,
            {"alpha": 1.702, "beta": 1.0, "clamp": 7.0},
        ),
        (
            "unheard_of",
            {"hidden_act": "situ", "activation_situ_beta": 4, "activation_situ_linear_beta": 25},
            ActivationType.SITU,
            {"alpha": 4.0, "beta": 25.0},
        ),
        ("inkling2", {"mlp_gate_softcap": 4, "mlp_up_softcap": 25}, ActivationType.SITU, {"alpha": 4.0, "beta": 25.0}),
        ("unheard_of", {"hidden_act": "situ"}, ActivationType.SITU, {"alpha": None, "beta": None}),
    ],
)
def test_activation(model_type, keys, kind, constants):
    found = problem(model_type, **keys)
    assert found.activation is kind
    expected = tuple(ActivationConstant(name=name, value=value) for name, value in constants.items())
    assert found.activation_constants == expected


@pytest.mark.parametrize(("keys", "word"), [({}, "no key states it"), ({"hidden_act": "mish"}, "'mish'")])
def test_an_unknown_activation_is_unknown_and_noted(keys, word):
    found = problem(**keys)
    assert (found.activation, found.activation_constants) == (None, None)
    assert f"the activation is unknown: {word}" in notes(**keys)


@pytest.mark.parametrize(
    ("model_type", "keys", "bias"),
    [
        ("gpt_oss", {}, True),
        ("qwen3_moe", {"mlp_bias": True}, False),
        ("unheard_of", {}, None),
        ("unheard_of", {"mlp_bias": False}, False),
        ("unheard_of", {"mlp_bias": True}, None),
    ],
)
def test_bias(model_type, keys, bias):
    assert problem(model_type, **keys).bias is bias


GROUPS = {"n_group": 4, "topk_group": 2}


@pytest.mark.parametrize(
    ("model_type", "keys", "method"),
    [
        ("mixtral", {}, METHOD.RENORMALIZE),
        ("qwen3_moe", {}, METHOD.DEFAULT),
        ("qwen3_moe", {"norm_topk_prob": True}, METHOD.RENORMALIZE),
        ("dbrx", {"ffn_config": {"moe_normalize_expert_weights": 1.0}}, METHOD.RENORMALIZE),
        ("deepseek_v2", GROUPS | {"topk_method": "group_limited_greedy"}, METHOD.GROUPED_SOFTMAX),
        ("deepseek_v2", GROUPS | {"topk_method": "greedy"}, METHOD.DEFAULT),
        ("deepseek_v3", {}, METHOD.DEEPSEEK_V3),
        ("minimax_m2", {}, METHOD.MINIMAX2),
        ("minimax_m2", {"use_routing_bias": False}, METHOD.SIGMOID_RENORM),
        ("hy_v3", {"router_scaling_factor": 2.0}, METHOD.MINIMAX3),
        ("cohere2_moe", {"expert_selection_fn": "sigmoid"}, METHOD.SIGMOID_RENORM),
        ("llama4", {}, METHOD.LLAMA4),
        ("deepseek_v4", {}, METHOD.DEEPSEEK_V4),
        ("unheard_of", {"scoring_func": "sqrtsoftplus"}, METHOD.SQRT_SOFTPLUS),
        ("unheard_of", {"scoring_func": "softmax"}, None),
        ("unheard_of", {"scoring_func": "softmax", "norm_topk_prob": True}, METHOD.RENORMALIZE),
        ("unheard_of", {"scoring_func": "sigmoid"}, None),
        ("unheard_of", {"scoring_func": "sigmoid", "use_routing_bias": True}, METHOD.MINIMAX2),
        ("unheard_of", {"scoring_func": "tanh"}, METHOD.UNSPECIFIED),
        ("unheard_of", {"norm_topk_prob": True}, None),
        ("laguna", {"moe_router_logit_softcapping": 30.0}, METHOD.UNSPECIFIED),
        ("ernie4_5_moe", {}, METHOD.UNSPECIFIED),
    ],
)
def test_routing_method(model_type, keys, method):
    assert problem(model_type, **keys).routing is method
    assert ("the routing method is unknown" in notes(model_type, **keys)) is (method is None)


@pytest.mark.parametrize(
    ("keys", "note"),
    [
        ({"scoring_func": "tanh"}, "router logits are scored by tanh, which no named routing method does"),
        ({"moe_router_logit_softcapping": 30.0}, "router logits are capped softly at 30"),
    ],
)
def test_routing_without_a_name_is_noted(keys, note):
    assert note in notes(**keys)


@pytest.mark.parametrize(
    ("model_type", "keys", "score"),
    [
        ("deepseek_v3", GROUPS, GroupScore.TOP2_SUM),
        ("deepseek_v3", {"n_group": 1, "topk_group": 1}, None),
        ("deepseek_v2", GROUPS | {"topk_method": "group_limited_greedy"}, GroupScore.MAX),
        ("mistral4", GROUPS, GroupScore.TOP2_SUM),
        ("unheard_of", GROUPS | {"topk_method": "noaux_tc"}, GroupScore.TOP2_SUM),
        ("unheard_of", GROUPS | {"use_routing_bias": False}, GroupScore.MAX),
        ("unheard_of", GROUPS, None),
    ],
)
def test_group_score(model_type, keys, score):
    found = problem(model_type, **keys)
    assert found.group_score is score
    assert (found.num_expert_groups, found.topk_group) == (keys["n_group"], keys["topk_group"])


def test_one_group_when_a_known_family_does_not_group():
    assert (problem("mixtral").num_expert_groups, problem("mixtral").topk_group) == (1, 1)
    assert (problem().num_expert_groups, problem().topk_group) == (None, None)


def test_router_weights_on_the_input():
    assert problem("llama4").apply_router_weight_on_input is True
    assert problem("laguna", moe_apply_router_weight_on_input=True).apply_router_weight_on_input is True
    assert problem("mixtral").apply_router_weight_on_input is False


@pytest.mark.parametrize("keys", [{"num_hash_layers": 1}, {"mlp_layer_types": ["hash_moe", "moe", "moe"]}])
def test_hashed_layers_take_no_bias(keys):
    groups = ingest(BASE | {"model_type": "deepseek_v4"} | keys).groups
    found = [(g.layers, g.problem.hashed_routing, g.problem.routing_bias) for g in groups]
    assert found == [((0,), True, False), ((1, 2), False, True)]
