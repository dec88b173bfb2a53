"""Families that are not in ``tests/data/configs``: the keys of their published configs, and what they mean."""

import pytest

from moe_core.contract.problem import ActivationConstant
from moe_core.contract.vocabulary import ActivationType, GroupScore, QuantAlgo, RoutingMethodType
from moe_core.ingest import ingest

METHOD = RoutingMethodType


def config(model_type, layers, hidden, **keys):
    return {"model_type": model_type, "num_hidden_layers": layers, "hidden_size": hidden, "hidden_act": "silu"} | keys


CASES = {
    "Qwen2-57B-A14B": (
        config(
            "qwen2_moe", 28, 3584,
            num_experts=64, num_experts_per_tok=8, moe_intermediate_size=2560, intermediate_size=18944,
            shared_expert_intermediate_size=20480, norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[],
        ),
        range(28),
        {
            "num_experts": 64, "top_k": 8, "hidden_size": 3584, "intermediate_size": 2560, "routing": METHOD.DEFAULT,
            "renormalize": False, "num_shared_experts": 1, "shared_intermediate_size": 20480,
            "shared_expert_gate": True,
        },
    ),
    "DeepSeek-V2": (
        config(
            "deepseek_v2", 60, 5120,
            n_routed_experts=160, num_experts_per_tok=6, moe_intermediate_size=1536, n_shared_experts=2,
            first_k_dense_replace=1, moe_layer_freq=1, n_group=8, topk_group=3, topk_method="group_limited_greedy",
            norm_topk_prob=False, routed_scaling_factor=16.0, scoring_func="softmax",
        ),
        range(1, 60),
        {
            "routing": METHOD.GROUPED_SOFTMAX, "num_expert_groups": 8, "topk_group": 3,
            "group_score": GroupScore.MAX, "routed_scaling_factor": 16.0, "routing_bias": False,
            "shared_intermediate_size": 3072, "num_shared_experts": 2,
        },
    ),
    "DeepSeek-V2-Lite": (
        config(
            "deepseek_v2", 27, 2048,
            n_routed_experts=64, num_experts_per_tok=6, moe_intermediate_size=1408, n_shared_experts=2,
            first_k_dense_replace=1, moe_layer_freq=1, n_group=1, topk_group=1, topk_method="greedy",
            norm_topk_prob=False, routed_scaling_factor=1.0, scoring_func="softmax",
        ),
        range(1, 27),
        {"routing": METHOD.DEFAULT, "num_expert_groups": 1, "group_score": None, "routed_scaling_factor": 1.0},
    ),
    "Phi-3.5-MoE": (
        config("phimoe", 32, 4096, num_local_experts=16, num_experts_per_tok=2, intermediate_size=6400),
        range(32),
        {"routing": METHOD.SPARSE_MIXER, "renormalize": False, "intermediate_size": 6400, "num_shared_experts": 0},
    ),
    "Jamba-1.5": (
        config(
            "jamba", 32, 4096,
            num_experts=16, num_experts_per_tok=2, intermediate_size=14336, expert_layer_period=2,
            expert_layer_offset=1, attn_layer_period=8, attn_layer_offset=4,
        ),
        range(1, 32, 2),
        {"routing": METHOD.DEFAULT, "intermediate_size": 14336},
    ),
    "DBRX": (
        {
            "model_type": "dbrx", "d_model": 6144, "n_layers": 40, "n_heads": 48, "torch_dtype": "bfloat16",
            "ffn_config": {
                "ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4, "moe_normalize_expert_weights": 1,
                "ffn_act_fn": {"name": "silu"},
            },
        },
        range(40),
        {
            "num_experts": 16, "top_k": 4, "hidden_size": 6144, "intermediate_size": 10752,
            "routing": METHOD.RENORMALIZE, "num_attention_heads": 48,
        },
    ),
    "Arctic": (
        config(
            "arctic", 35, 7168,
            num_local_experts=128, num_experts_per_tok=2, intermediate_size=4864, moe_layer_frequency=2,
        ),
        range(1, 35, 2),
        {"num_experts": 128, "intermediate_size": 4864},
    ),
    "Hunyuan-A13B": (
        config(
            "hunyuan_v1_moe", 32, 4096,
            num_experts=64, moe_topk=[8] * 32, moe_intermediate_size=[3072] * 32, num_shared_expert=[1] * 32,
            intermediate_size=3072, moe_layer_num_skipped=0, norm_topk_prob=True, use_mixed_mlp_moe=True,
        ),
        range(32),
        {"top_k": 8, "intermediate_size": 3072, "num_shared_experts": 1, "shared_intermediate_size": 3072},
    ),
    "ERNIE-4.5-21B-A3B": (
        config(
            "ernie4_5_moe", 28, 2560,
            moe_num_experts=64, moe_k=6, moe_intermediate_size=1536, intermediate_size=12288, moe_num_shared_experts=2,
            moe_layer_start_index=1, moe_layer_end_index=27, moe_layer_interval=1, moe_use_aux_free=True,
            num_nextn_predict_layers=1,
        ),
        range(1, 28),
        {
            "routing": METHOD.UNSPECIFIED, "routing_bias": True, "renormalize": True,
            "shared_intermediate_size": 3072,
        },
    ),
    "ERNIE-4.5-VL-28B-A3B": (
        config(
            "ernie4_5_moe_vl", 28, 2560,
            moe_num_experts=[64, 64], moe_k=6, moe_intermediate_size=[1536, 512], moe_num_shared_experts=2,
            moe_layer_start_index=[1, 1], moe_layer_end_index=[29, 28], moe_layer_interval=1, moe_use_aux_free=True,
        ),
        range(1, 28),
        {"num_experts": 64, "intermediate_size": 1536},
    ),
    "LongCat-Flash": (
        {
            "model_type": "longcat_flash", "num_layers": 28, "hidden_size": 6144, "ffn_hidden_size": 12288,
            "expert_ffn_hidden_size": 2048, "n_routed_experts": 512, "zero_expert_num": 256, "moe_topk": 12,
            "routed_scaling_factor": 6.0, "num_nextn_predict_layers": 1,
        },
        range(28),
        {"num_experts": 512, "top_k": 12, "intermediate_size": 2048, "routing": METHOD.UNSPECIFIED},
    ),
    "MiMo-V2-Flash": (
        config(
            "mimo_v2_flash", 48, 4096,
            n_routed_experts=256, num_experts_per_tok=8, moe_intermediate_size=2048, intermediate_size=16384,
            moe_layer_freq=[0] + [1] * 47, scoring_func="sigmoid", topk_method="noaux_tc", n_group=1, topk_group=1,
            routed_scaling_factor=None, n_shared_experts=None, norm_topk_prob=True,
        ),
        range(1, 48),
        {"routing": METHOD.DEEPSEEK_V3, "routed_scaling_factor": 1.0, "num_shared_experts": 0},
    ),
    "Step-3.5-Flash": (
        config(
            "step3p5", 45, 4096,
            moe_num_experts=288, moe_top_k=8, moe_intermediate_size=1280, share_expert_dim=1280,
            moe_layers_enum=",".join(map(str, range(3, 45))), use_moe_router_bias=True, norm_expert_weight=True,
            moe_router_activation="sigmoid", moe_router_scaling_factor=3.0, num_nextn_predict_layers=3,
            swiglu_limits=[0.0] * 43 + [7.0, 7.0] + [0.0] * 3,
        ),
        range(3, 43),
        {"routing": METHOD.MINIMAX3, "shared_intermediate_size": 1280, "clamp_after_silu": False},
    ),
    "Kimi-K3": (
        {
            "model_type": "kimi_k3",
            "text_config": {
                "model_type": "kimi_linear", "num_hidden_layers": 93, "hidden_size": 7168, "num_experts": 896,
                "routed_expert_hidden_size": 3584, "num_experts_per_token": 16, "moe_intermediate_size": 3072,
                "num_shared_experts": 2, "first_k_dense_replace": 1, "moe_layer_freq": 1, "hidden_act": "situ",
                "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "num_expert_group": 1,
                "topk_group": 1, "moe_renormalize": True, "moe_router_activation_func": "sigmoid",
                "routed_scaling_factor": 2.5,
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "config_groups": {
                        "group_0": {
                            "format": "mxfp4-pack-quantized",
                            "targets": [r"re:.*block_sparse_moe\.experts\.\d+\.w[123]$"],
                            "weights": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32},
                            "input_activations": None,
                        }
                    },
                    "ignore": ["lm_head"],
                },
            },
        },
        range(1, 93),
        {
            "hidden_size": 3584, "model_hidden_size": 7168, "top_k": 16, "activation": ActivationType.SITU,
            "activation_constants": (
                ActivationConstant(name="alpha", value=4.0), ActivationConstant(name="beta", value=25.0),
            ),
            "routing": METHOD.DEEPSEEK_V3, "quant": QuantAlgo.W4A16_MXFP4, "quant_group_size": 32,
        },
    ),
    "Nemotron-3-Super": (
        {
            "model_type": "nemotron_h", "num_hidden_layers": 6, "hidden_size": 4096,
            "hybrid_override_pattern": "MEM*E-",
            "n_routed_experts": 512, "num_experts_per_tok": 22, "moe_latent_size": 1024, "moe_intermediate_size": 2688,
            "n_shared_experts": 1, "moe_shared_expert_intermediate_size": 5376, "mlp_hidden_act": "relu2",
            "routed_scaling_factor": 5.0, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
            "num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E",
        },
        (1, 4),
        {
            "hidden_size": 1024, "model_hidden_size": 4096, "activation": ActivationType.RELU2,
            "shared_intermediate_size": 5376, "routed_scaling_factor": 5.0,
        },
    ),
    "Ling-2": (
        config(
            "bailing_moe_v2", 20, 2048,
            num_experts=256, num_experts_per_tok=8, moe_intermediate_size=512, num_shared_experts=1,
            first_k_dense_replace=1, n_group=8, topk_group=4, score_function="sigmoid", norm_topk_prob=True,
            moe_router_enable_expert_bias=True, routed_scaling_factor=2.5,
        ),
        range(1, 20),
        {"routing": METHOD.DEEPSEEK_V3, "num_expert_groups": 8, "group_score": GroupScore.TOP2_SUM},
    ),
    "MiniMax-M3": (
        {
            "model_type": "minimax_m3_vl",
            "text_config": config(
                "minimax_m3_vl_text", 4, 6144,
                hidden_act="swigluoai", num_local_experts=128, num_experts_per_tok=4, intermediate_size=3072,
                moe_layer_freq=[0, 1, 1, 1], scoring_func="sigmoid", use_routing_bias=True, routed_scaling_factor=2.0,
                swiglu_alpha=1.702, swiglu_limit=7.0, shared_intermediate_size=3072,
            ),
        },
        (1, 2, 3),
        {
            "activation": ActivationType.SWIGLU_BIAS, "bias": False, "routing": METHOD.MINIMAX3,
            "routed_scaling_factor": 2.0, "num_shared_experts": 1,
        },
    ),
    "Trinity": (
        config(
            "afmoe", 32, 2048,
            num_experts=128, num_experts_per_tok=8, moe_intermediate_size=1024, num_dense_layers=2,
            num_shared_experts=1, score_func="sigmoid", route_norm=True, route_scale=2.826, n_group=1, topk_group=1,
        ),
        range(2, 32),
        {"routing": METHOD.DEEPSEEK_V3, "routed_scaling_factor": 2.826, "routing_bias": True},
    ),
    "Granite-4-h-small": (
        config(
            "granitemoehybrid", 40, 4096,
            num_local_experts=72, num_experts_per_tok=10, intermediate_size=768, shared_intermediate_size=1536,
            layer_types=["mamba"] * 5 + ["attention"] + ["mamba"] * 34,
        ),
        range(40),
        {"routing": METHOD.RENORMALIZE, "num_shared_experts": 1, "shared_intermediate_size": 1536},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_family(name):
    keys, layers, expected = CASES[name]
    group = ingest(keys).groups[0]
    assert group.layers == tuple(layers)
    assert {field: getattr(group.problem, field) for field in expected} == expected


def test_step_clamps_after_silu_in_its_last_layers():
    groups = ingest(CASES["Step-3.5-Flash"][0]).groups
    assert [(group.layers, group.problem.clamp_after_silu) for group in groups] == [
        (tuple(range(3, 43)), False),
        ((43, 44), True),
    ]
    assert groups[1].problem.activation_constants == (ActivationConstant(name="clamp", value=7.0),)


@pytest.mark.parametrize(
    ("name", "drafts"),
    [("Nemotron-3-Super", (7,)), ("ERNIE-4.5-21B-A3B", ()), ("LongCat-Flash", ()), ("Step-3.5-Flash", ())],
)
def test_draft_layers(name, drafts):
    assert ingest(CASES[name][0]).draft_layers == drafts


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("Arctic", "dense MLP"),
        ("ERNIE-4.5-VL-28B-A3B", "vision"),
        ("LongCat-Flash", "identity experts"),
        ("LongCat-Flash", "draft layers have no experts"),
    ],
)
def test_what_a_problem_cannot_say_is_noted(name, word):
    assert any(word in note for note in ingest(CASES[name][0]).notes)


def test_an_unknown_family_leaves_unknown_what_its_config_does_not_say():
    keys = config("brand_new", 2, 64, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32)
    problem = ingest(keys).groups[0].problem
    unknown = ("routing", "renormalize", "routed_scaling_factor", "routing_bias", "bias", "num_shared_experts")
    assert [getattr(problem, field) for field in unknown] == [None] * len(unknown)
    assert problem.activation is ActivationType.SWIGLU


def test_an_unknown_family_is_understood_as_far_as_its_keys_go():
    keys = config(
        "brand_new", 2, 64,
        num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, scoring_func="sigmoid", topk_method="noaux_tc",
        norm_topk_prob=True, n_group=4, topk_group=2, routed_scaling_factor=1.5, n_shared_experts=0, mlp_bias=False,
    )  # fmt: skip
    problem = ingest(keys).groups[0].problem
    assert problem.routing is METHOD.DEEPSEEK_V3
    assert (problem.routing_bias, problem.num_shared_experts, problem.bias) == (True, 0, False)


def test_a_family_is_known_by_its_architecture_too():
    keys = config("my_finetune", 2, 64, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32)
    named = keys | {"architectures": ["Qwen3MoeForCausalLM"], "norm_topk_prob": True}
    assert ingest(named).groups[0].problem.routing is METHOD.RENORMALIZE
