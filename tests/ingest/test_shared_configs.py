"""Every config in ``tests/data/configs``, against what its model is known to be."""

import copy
import json
import time
from pathlib import Path

import pytest

from moe_core.contract.problem import ActivationConstant, MoEProblem
from moe_core.contract.vocabulary import ActivationType, GroupScore, LayerRole, QuantAlgo, RoutingMethodType
from moe_core.ingest import IngestedModel, IngestError, LayerGroup, ingest

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
TARGET, DRAFT = LayerRole.TARGET, LayerRole.DRAFT
FP8_BLOCK = {"quant": QuantAlgo.FP8_BLOCK_SCALES, "quant_group_size": 128}
NVFP4 = {"quant": QuantAlgo.NVFP4, "quant_group_size": 16}
UNQUANTIZED = {"quant": QuantAlgo.NONE, "quant_group_size": None}


def problem(experts, top_k, hidden, width, heads, **fields):
    """A gated, unquantized, bias-free problem with softmax routing and no shared experts, but for `fields`."""
    return MoEProblem(
        num_experts=experts,
        top_k=top_k,
        hidden_size=hidden,
        model_hidden_size=hidden,
        intermediate_size=width,
        num_attention_heads=heads,
        **{
            **UNQUANTIZED,
            "bias": False,
            "routing": RoutingMethodType.RENORMALIZE,
            "num_expert_groups": 1,
            "topk_group": 1,
            "renormalize": True,
            "routed_scaling_factor": 1.0,
            "routing_bias": False,
            "num_shared_experts": 0,
            **fields,
        },
    )


NOAUX_TC = {"routing": RoutingMethodType.DEEPSEEK_V3, "routing_bias": True, "num_shared_experts": 1}
DEEPSEEK_V3 = problem(
    256, 8, 7168, 2048, 128,
    **NOAUX_TC, num_expert_groups=8, topk_group=4, group_score=GroupScore.TOP2_SUM, routed_scaling_factor=2.5,
    shared_intermediate_size=2048, **FP8_BLOCK,
)  # fmt: skip
DEEPSEEK_V4 = problem(
    256, 6, 4096, 2048, 64,
    routing=RoutingMethodType.DEEPSEEK_V4, routing_bias=True, routed_scaling_factor=1.5,
    activation_constants=(ActivationConstant(name="clamp", value=10.0),),
    num_shared_experts=1, shared_intermediate_size=2048, quant=QuantAlgo.W4A8_MXFP4_MXFP8, quant_group_size=32,
)  # fmt: skip
KIMI_K2 = problem(
    384, 8, 7168, 2048, 64, **NOAUX_TC, routed_scaling_factor=2.827, shared_intermediate_size=2048, **FP8_BLOCK
)
GLM_5 = problem(
    256, 8, 6144, 2048, 64, **NOAUX_TC, routed_scaling_factor=2.5, shared_intermediate_size=2048, **FP8_BLOCK
)
MINIMAX_M2 = problem(256, 8, 3072, 1536, 48, routing=RoutingMethodType.MINIMAX2, routing_bias=True, **FP8_BLOCK)
NEMOTRON_NANO = problem(
    128, 6, 2688, 1856, 32,
    **NOAUX_TC, routed_scaling_factor=2.5, shared_intermediate_size=3712, activation=ActivationType.RELU2,
)  # fmt: skip
STEP_FLASH = problem(
    288, 8, 4096, 1280, 64,
    routing=RoutingMethodType.MINIMAX3, routing_bias=True, routed_scaling_factor=3.0,
    num_shared_experts=1, shared_intermediate_size=1280,
)  # fmt: skip
QWEN3_30B = problem(128, 8, 2048, 768, 32)
QWEN3_235B = problem(128, 8, 4096, 1536, 64)
LLAMA_4_SCOUT = problem(
    16, 1, 5120, 8192, 40,
    routing=RoutingMethodType.LLAMA4, renormalize=False, apply_router_weight_on_input=True,
    num_shared_experts=1, shared_intermediate_size=8192,
)  # fmt: skip
GPT_OSS_120B = problem(
    128, 4, 2880, 2880, 64,
    activation=ActivationType.SWIGLU_BIAS, bias=True, quant=QuantAlgo.W4A16_MXFP4, quant_group_size=32,
    activation_constants=tuple(
        ActivationConstant(name=name, value=value) for name, value in (("alpha", 1.702), ("beta", 1.0), ("clamp", 7.0))
    ),
)  # fmt: skip
NEMOTRON_LAYERS = (1, 3, 6, 8, 10, 13, 15, 17, 20, 22, 24, 27, 29, 31, 34, 36, 38, 40, 43, 45, 47, 49, 51)

EXPECTED = {
    "MiniMaxAI__MiniMax-M2.5": [(TARGET, range(62), MINIMAX_M2), (DRAFT, range(62, 65), MINIMAX_M2)],
    "Qwen__Qwen3-235B-A22B": [(TARGET, range(94), QWEN3_235B)],
    "Qwen__Qwen3-30B-A3B": [(TARGET, range(48), QWEN3_30B)],
    "Qwen__Qwen3-30B-A3B-FP8": [(TARGET, range(48), QWEN3_30B.evolve(**FP8_BLOCK))],
    "Qwen__Qwen3-VL-30B-A3B-Instruct": [(TARGET, range(48), QWEN3_30B)],
    "deepseek-ai__DeepSeek-V3": [(TARGET, range(3, 61), DEEPSEEK_V3), (DRAFT, [61], DEEPSEEK_V3)],
    "deepseek-ai__DeepSeek-V4-Flash": [
        (TARGET, range(3), DEEPSEEK_V4.evolve(hashed_routing=True, routing_bias=False)),
        (TARGET, range(3, 43), DEEPSEEK_V4),
        (DRAFT, [43], DEEPSEEK_V4),
    ],
    "google__gemma-4-26B-A4B": [
        (TARGET, range(30), problem(128, 8, 2816, 704, 16, activation=ActivationType.GEGLU_TANH))
    ],
    "meta-llama__Llama-4-Maverick-17B-128E-Instruct": [
        (TARGET, range(1, 48, 2), LLAMA_4_SCOUT.evolve(num_experts=128))
    ],
    "meta-llama__Llama-4-Scout-17B-16E-Instruct": [(TARGET, range(48), LLAMA_4_SCOUT)],
    "mistralai__Mixtral-8x7B-v0.1": [(TARGET, range(32), problem(8, 2, 4096, 14336, 32))],
    "moonshotai__Kimi-K2-Instruct": [(TARGET, range(1, 61), KIMI_K2)],
    "moonshotai__Kimi-K2.5": [(TARGET, range(1, 61), KIMI_K2.evolve(quant=QuantAlgo.W4A16_GPTQ, quant_group_size=32))],
    "nvidia__DeepSeek-V3.1-NVFP4": [
        (TARGET, range(3, 61), DEEPSEEK_V3.evolve(**NVFP4)),
        (DRAFT, [61], DEEPSEEK_V3.evolve(**UNQUANTIZED)),
    ],
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": [(TARGET, NEMOTRON_LAYERS, NEMOTRON_NANO)],
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": [(TARGET, NEMOTRON_LAYERS, NEMOTRON_NANO.evolve(**NVFP4))],
    "nvidia__Qwen3-235B-A22B-NVFP4": [(TARGET, range(94), QWEN3_235B.evolve(**NVFP4))],
    "openai__gpt-oss-120b": [(TARGET, range(36), GPT_OSS_120B)],
    "openai__gpt-oss-20b": [(TARGET, range(24), GPT_OSS_120B.evolve(num_experts=32))],
    "stepfun-ai__Step-3.7-Flash": [(TARGET, range(3, 45), STEP_FLASH)],
    "zai-org__GLM-5-FP8": [(TARGET, range(3, 78), GLM_5), (DRAFT, [78], GLM_5)],
}
DENSE = "Qwen__Qwen3-0.6B"
LAYERS = {"deepseek-ai__DeepSeek-V3": 61, "google__gemma-4-26B-A4B": 30, "stepfun-ai__Step-3.7-Flash": 45}


def test_every_config_has_an_expectation():
    assert {p.name for p in CONFIGS.iterdir() if p.is_dir()} == {*EXPECTED, DENSE}


@pytest.mark.parametrize("name", EXPECTED)
def test_groups(name):
    expected = tuple(
        LayerGroup(role=role, layers=tuple(layers), problem=problem) for role, layers, problem in EXPECTED[name]
    )
    assert ingest(CONFIGS / name).groups == expected


@pytest.mark.parametrize(("name", "layers"), LAYERS.items())
def test_every_layer_is_moe_or_dense(name, layers):
    model = ingest(CONFIGS / name)
    assert model.num_hidden_layers == layers
    assert sorted(model.moe_layers + model.dense_layers) == list(range(layers))


def test_a_dense_model_is_an_error_that_says_what_was_looked_for():
    with pytest.raises(IngestError, match=r"no MoE layer: model_type qwen3.*needed one of num_experts, num_local_exp"):
        ingest(CONFIGS / DENSE)


@pytest.mark.parametrize("name", EXPECTED)
def test_keys_that_were_not_read_do_not_matter(name):
    """The keys that a result names are all that it depends on."""
    config = json.loads((CONFIGS / name / "config.json").read_text())
    read = {key.path for key in ingest(config).keys_read}

    def only_read(part, prefix=""):
        kept = {key: value for key, value in part.items() if f"{prefix}{key}" in read}
        inside = {k: only_read(v, f"{prefix}{k}.") for k, v in part.items() if isinstance(v, dict) and k not in kept}
        return kept | inside

    assert ingest(only_read(config)).groups == ingest(config).groups


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("google__gemma-4-26B-A4B", "text_config.top_k_experts", "8"),
        ("google__gemma-4-26B-A4B", "text_config.num_experts", "128"),
        ("meta-llama__Llama-4-Maverick-17B-128E-Instruct", "text_config.interleave_moe_layer_step", "2"),
        ("moonshotai__Kimi-K2.5", "text_config.quantization_config.quant_method", '"compressed-tensors"'),
        ("nvidia__DeepSeek-V3.1-NVFP4", "hf_quant_config.quantization.quant_algo", '"NVFP4"'),
        ("openai__gpt-oss-20b", "experts_per_token", "4"),
        ("stepfun-ai__Step-3.7-Flash", "moe_router_scaling_factor", "3.0"),
    ],
)
def test_the_result_names_the_keys_that_it_read(name, path, value):
    assert {key.path: key.value for key in ingest(CONFIGS / name).keys_read}[path] == value


@pytest.mark.parametrize("name", EXPECTED)
def test_a_result_survives_json_and_leaves_its_source_alone(name):
    config = json.loads((CONFIGS / name / "config.json").read_text())
    before = copy.deepcopy(config)
    model = ingest(config)
    assert IngestedModel.from_json(model.to_json()) == model
    assert model == ingest(before)
    assert config == before


@pytest.mark.parametrize("name", EXPECTED)
def test_reading_a_config_takes_milliseconds(name):
    def seconds():
        start = time.process_time()
        ingest(CONFIGS / name)
        return time.process_time() - start

    assert min(seconds() for _ in range(5)) < 0.02


def test_kv_cache_quantization_is_not_read():
    paths = [key.path for key in ingest(CONFIGS / "nvidia__DeepSeek-V3.1-NVFP4").keys_read]
    assert not [path for path in paths if "kv_cache" in path]
