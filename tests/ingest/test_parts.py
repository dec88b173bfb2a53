"""Where the experts are in a nested config, and under which names."""

import random

import pytest

from moe_core.ingest import IngestError, ingest

TEXT = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 2,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "hidden_size": 64,
}
OTHER = {"num_hidden_layers": 9, "hidden_size": 16, "intermediate_size": 8}


@pytest.mark.parametrize(
    "path",
    [
        (),
        ("text_config",),
        ("llm_config",),
        ("language_config",),
        ("language_model_config",),
        ("thinker_config", "text_config"),
        ("model", "decoder", "text_config"),
    ],
)
def test_experts_are_found_wherever_they_are(path):
    config = TEXT
    for name in reversed(path):
        config = {name: config, "vision_config": OTHER, "hidden_size": 1}
    model = ingest(config)
    assert model.groups == ingest(TEXT).groups
    assert ".".join([*path, "num_experts"]) in {key.path for key in model.keys_read}


def test_what_the_text_part_leaves_out_is_looked_for_around_it():
    inner = {key: value for key, value in TEXT.items() if key != "model_type"}
    quant = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    outer = {"model_type": "qwen3_moe", "dtype": "float16", "quantization_config": quant, "num_mtp_layers": 1}
    model = ingest({"text_config": inner, **outer})
    assert model.draft_layers == (2,)
    assert (model.groups[0].problem.dtype_act, model.groups[0].problem.quant) == ("float16", "FP8_BLOCK_SCALES")


def test_experts_elsewhere_are_noted():
    config = {"thinker_config": {"text_config": TEXT}, "talker_config": {"text_config": TEXT | {"num_experts": 4}}}
    model = ingest(config)
    assert model.groups == ingest(TEXT).groups
    assert "talker_config.text_config holds experts too; they are not part of the result" in model.notes


def test_experts_of_a_vision_tower_are_not_the_language_model():
    with pytest.raises(IngestError, match="no MoE layer"):
        ingest({"vision_config": TEXT, "text_config": OTHER})


@pytest.mark.parametrize(
    ("names", "sizes"),
    [
        # Llama 4 Scout, HunYuan, Mixtral
        (("num_local_experts", "num_experts_per_tok", "intermediate_size", "hidden_size"), (16, 1, 8192, 5120)),
        (("num_experts", "moe_topk", "moe_intermediate_size", "hidden_size"), (64, 8, 3072, 4096)),
        (("num_local_experts", "num_experts_per_tok", "intermediate_size", "hidden_size"), (8, 2, 14336, 4096)),
        # Gemma 4, Kimi-Linear, gpt-oss, ERNIE, LongCat, Step, DBRX, Megatron
        (("num_experts", "top_k_experts", "moe_intermediate_size", "hidden_size"), (128, 8, 704, 2816)),
        (("num_experts", "num_experts_per_token", "moe_intermediate_size", "hidden_size"), (256, 8, 1024, 2304)),
        (("num_local_experts", "experts_per_token", "intermediate_size", "hidden_size"), (32, 4, 2880, 2880)),
        (("moe_num_experts", "moe_k", "moe_intermediate_size", "hidden_size"), (64, 6, 1536, 2560)),
        (("n_routed_experts", "moe_topk", "expert_ffn_hidden_size", "hidden_size"), (512, 12, 2048, 6144)),
        (("moe_num_experts", "moe_top_k", "moe_intermediate_size", "hidden_size"), (288, 8, 1280, 4096)),
        (
            ("ffn_config.moe_num_experts", "ffn_config.moe_top_k", "ffn_config.ffn_hidden_size", "d_model"),
            (16, 4, 10752, 6144),
        ),
        (("num_moe_experts", "moe_router_topk", "moe_ffn_hidden_size", "hidden_size"), (64, 8, 1024, 2048)),
    ],
)
def test_aliases(names, sizes):
    config = {"num_hidden_layers": 1}
    for name, size in zip(names, sizes, strict=True):
        outer, dot, inner = name.partition(".")
        if dot:
            config.setdefault(outer, {})[inner] = size
        else:
            config[name] = size
    model = ingest(config)
    problem = model.groups[0].problem
    assert (problem.num_experts, problem.top_k, problem.intermediate_size, problem.hidden_size) == sizes
    assert {(key.path, key.value) for key in model.keys_read} >= {
        (n, str(s)) for n, s in zip(names, sizes, strict=True)
    }


def test_aliases_that_agree_are_all_named():
    paths = [key.path for key in ingest(TEXT | {"num_local_experts": 8}).keys_read]
    assert {"num_experts", "num_local_experts"} <= set(paths)


def test_the_order_of_keys_does_not_matter():
    keys = list(
        (TEXT | {"num_local_experts": 8, "shared_expert_intermediate_size": 16, "norm_topk_prob": True}).items()
    )
    expected = ingest(dict(keys))
    for seed in range(5):
        random.Random(seed).shuffle(keys)
        assert ingest(dict(keys)) == expected


def test_a_long_value_is_shortened_in_the_keys_read():
    keys = ingest(TEXT | {"mlp_only_layers": [], "moe_layers": None, "mlp_layer_types": ["sparse"] * 2}).keys_read
    assert {key.path: key.value for key in keys}["mlp_layer_types"] == '["sparse", "sparse"]'
    long = ingest(TEXT | {"num_hidden_layers": 40, "mlp_layer_types": ["sparse"] * 40}).keys_read
    value = {key.path: key.value for key in long}["mlp_layer_types"]
    assert value.startswith('["sparse", "sparse"')
    assert value.endswith("… (40 items)")
    assert len(value) < 80
