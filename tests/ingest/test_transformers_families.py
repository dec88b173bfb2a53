"""Every mixture-of-experts family of ``transformers``: what ingest reads is what the model builds.

Models are built on the meta device with few layers. Their expert modules say which layers are MoE and how wide they
are; their router modules, run with random weights, say how tokens choose experts.
"""

import importlib
import importlib.util
import inspect
import re
from functools import cache

import pytest
import torch

from moe_core.activation import Activation
from moe_core.contract.vocabulary import RoutingMethodType
from moe_core.ingest import IngestError, ingest
from moe_core.ingest.aliases import NUM_EXPERTS
from moe_core.routing import route

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers, the oracle of this file, is not installed"
)

SIX = {"num_hidden_layers": 6}
TOKENS = 16
GEMMA = SIX | {"num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 512}

BUILT = {
    "afmoe": SIX,
    "aria": {"text_config": SIX | {"intermediate_size": 1024}},
    "aria_text": SIX | {"intermediate_size": 1024},
    "axk1": SIX,
    "axk2": SIX,
    "bailing_hybrid": SIX,
    "beam": SIX,
    "cohere2_moe": SIX | {"first_k_dense_replace": 2, "prefix_dense_intermediate_size": 512, "num_shared_experts": 2},
    "dbrx": {"n_layers": 3, "attn_config": {"rope_theta": 1e4}},
    "deepseek_ocr2": {
        "text_config": {
            "num_hidden_layers": 3,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "num_experts_per_tok": 6,
        }
    },
    "deepseek_v2": SIX
    | {"num_experts_per_tok": 6, "first_k_dense_replace": 1, "routed_scaling_factor": 16.0}
    | {"topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3},
    "deepseek_v3": SIX,
    "deepseek_v32": SIX,
    "deepseek_v4": SIX,
    "diffusion_gemma": {"text_config": GEMMA},
    "dots1": SIX | {"n_routed_experts": 16, "num_experts_per_tok": 4, "n_shared_experts": 2},
    "dots3_note": {},
    "dots3_note_text": SIX,
    "dots3_note_vision_encoder": {},
    "ernie4_5_moe": SIX | {"moe_layer_interval": 2, "moe_layer_end_index": 4},
    "ernie4_5_vl_moe": {},
    "exaone_moe": SIX,
    "flex_olmo": SIX,
    "flint": SIX,
    "gemma4": {"text_config": GEMMA | {"enable_moe_block": True}},
    "gemma4_text": GEMMA | {"enable_moe_block": True},
    "glm4_moe": SIX,
    "glm4_moe_lite": SIX,
    "glm4v_moe": {},
    "glm4v_moe_text": SIX,
    "glm5_next": {},
    "glm5_next_text": SIX,
    "glm_moe_dsa": SIX,
    "gpt_oss": SIX | {"intermediate_size": 1024},
    "granitemoe": SIX,
    "granitemoe_swa": SIX | {"shared_intermediate_size": 512},
    "granitemoehybrid": SIX,
    "granitemoeshared": SIX | {"shared_intermediate_size": 512},
    "hunyuan_v1_moe": SIX | {"num_experts": 8, "moe_topk": 2, "head_dim": 128},
    "hy_v3": SIX,
    "hy_v4": SIX,
    "hy_v4_vl": {},
    "hy_v4_vl_text": SIX,
    "inkling2": {},
    "inkling2_loop": {},
    "inkling2_loop_text": SIX,
    "inkling2_text": SIX,
    "inkling_mm_model": {},
    "inkling_text": SIX,
    "jamba": SIX,
    "jetmoe": SIX,
    "kimi_k25": {},
    "kimi_linear": SIX,
    "kolibri1": SIX,
    "laguna": SIX,
    "lara_mini": SIX,
    "lfm2_moe": SIX | {"layer_types": ["conv", "conv", "full_attention"] * 2},
    "llama4": {"text_config": {"interleave_moe_layer_step": 2}},
    "llama4_text": SIX | {"interleave_moe_layer_step": 2},
    "longcat_flash": {"num_layers": 3},
    "mellum": SIX,
    "mimo_v2_flash": SIX,
    "minimax": SIX,
    "minimax_m2": SIX,
    "minimax_m3_vl": {},
    "minimax_m3_vl_text": SIX | {"moe_layer_freq": [0, 1, 1, 0, 1, 1]},
    "mistral4": SIX | {"first_k_dense_replace": 1, "n_group": 8, "topk_group": 3},
    "mistral_large4": {"text_config": SIX | {"moe_intermediate_size": 1024}},
    "mistral_large4_text": SIX | {"moe_intermediate_size": 1024},
    "mixtral": SIX,
    "muse_spark": {"text_config": SIX | {"moe_intermediate_size": 1024}},
    "muse_spark_text": SIX | {"moe_intermediate_size": 1024},
    "nemo_speechlm": {},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "moe"],
        "moe_latent_size": 64,
    },
    "olmoe": SIX | {"intermediate_size": 1024},
    "openai_privacy_filter": SIX | {"intermediate_size": 512},
    "phimoe": SIX,
    "qwen2_moe": SIX | {"decoder_sparse_step": 2, "mlp_only_layers": [3]},
    "qwen3_5_moe": {},
    "qwen3_5_moe_text": SIX,
    "qwen3_moe": SIX | {"mlp_only_layers": [0, 4]},
    "qwen3_next": SIX | {"decoder_sparse_step": 3},
    "qwen3_omni_moe_talker_text": SIX | {"norm_topk_prob": True, "shared_expert_intermediate_size": 512},
    "qwen3_omni_moe_thinker": {},
    "qwen3_vl_moe": {},
    "qwen3_vl_moe_text": SIX,
    "qwen4_exp_text": SIX
    | {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 256}
    | {"indexer_budget": 64, "indexer_compress_ratio": 4},
    "sarvam_mla": SIX,
    "sarvam_moe": SIX,
    "solar_open": SIX,
    "step3p7": {"text_config": SIX | {"moe_router_scaling_factor": 3.0, "swiglu_limits": [0, 0, 0, 0, 7, None]}},
    "unlimited_ocr": {},
    "zaya": SIX | {"moe_intermediate_size": 1024},
}
"""Families whose default model can be built, with the arguments that make it small or tell layers apart."""

OCR = {"num_experts_per_tok": 6, "mlp_layer_types": ["sparse"] * 32}
SAME_AS = {
    "deepseek_ocr2_text": ("deepseek_ocr2", OCR, {"text_config": OCR}),
    "diffusion_gemma_text": ("diffusion_gemma", GEMMA, {"text_config": GEMMA}),
    "ernie4_5_vl_moe_text": ("ernie4_5_vl_moe", {}, {}),
    "nemotron_h_omni": ("nemotron_h", {}, {}),
    "qwen3_omni_moe": ("qwen3_omni_moe_thinker", {}, {}),
    "qwen3_omni_moe_text": ("qwen3_omni_moe_thinker", {}, {}),
    "qwen4_exp": ("qwen4_exp_text", {}, {}),
    "step3p5": ("step3p7", {}, {}),
    "unlimited_ocr_text": ("unlimited_ocr", {}, {}),
}
"""Configs without a model of their own in ``transformers``, the family whose layers they describe, and arguments."""

REFUSED = {
    "doge": "single neurons that are found by product keys",
    "nllb-moe": "an encoder-decoder model",
    "switch_transformers": "an encoder-decoder model",
    "vitpose": "num_experts = 1",
    "vitpose_backbone": "num_experts = 1",
}
"""Families whose experts are no MoE problem of a language model, and what the error says."""

MODEL_CLASS = {
    "dots3_note_vision_encoder": "dots3_note.modeling_dots3_note:Dots3NoteVisionModel",
    "qwen3_omni_moe_talker_text": "qwen3_omni_moe.modeling_qwen3_omni_moe:Qwen3OmniMoeTalkerModel",
}
"""Models that ``AutoModel`` does not know."""

SCALED_OUTSIDE = ("beam", "laguna", "minimax_m3_vl", "minimax_m3_vl_text", "step3p7")
"""Families whose MoE block, and not its router, applies the scaling factor."""

NO_NAMED_METHOD = (
    "ernie4_5_moe",
    "ernie4_5_vl_moe",
    "inkling_mm_model",
    "inkling_text",
    "kolibri1",
    "longcat_flash",
    "zaya",
)
"""Families that route as no named method does."""

ROUTER_TAKES_PART_OF_THE_BLOCK = ("dbrx", "jetmoe", "llama4", "llama4_text")
"""Families whose router gives no (logits, weights, ids), so that it cannot be run by itself."""


TAKE_BATCHES = ("AfmoeTokenChoiceRouter", "DeepseekV4HashRouter")
"""Routers of hidden states with a batch dimension."""


def config_class(model_type):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {model_type}")
    return CONFIG_MAPPING[model_type]


@cache
def build(model_type):
    """The ingested config of a family, and its model on the meta device."""
    from transformers import AutoModel

    config = config_class(model_type)(**BUILT[model_type])
    with torch.device("meta"):
        if model_type in MODEL_CLASS:
            module, _, name = MODEL_CLASS[model_type].partition(":")
            model = getattr(importlib.import_module(f"transformers.models.{module}"), name)(config)
        else:
            model = AutoModel.from_config(config)
    return ingest(config), model


def in_layers(model, wanted):
    """Modules by layer: those of the language model whose path inside their layer satisfies `wanted`."""
    found = {}
    for path, module in model.named_modules():
        layer = re.search(r"(?:^|\.)(?:layers|blocks)\.(\d+)\.(.*)$", path)
        if layer and not re.search(r"vision|audio", path) and wanted(layer[2], module):
            found.setdefault(int(layer[1]), module)
    return found


def experts_of(model):
    return in_layers(
        model,
        lambda path, module: type(module).__name__.endswith("Experts") and not re.search(r"shared|attention", path),
    )


def shapes(module):
    """Shapes of FC1 and FC2 of an expert module, without the number of experts; and that number."""
    named = {name: tuple(p.shape) for name, p in module.named_parameters() if not name.endswith("bias")}
    if "mlp.w1" in named:  # DBRX: all experts in two dimensions
        rows, hidden = named["mlp.w1"]
        width = rows // module.num_experts
        return module.num_experts, (2 * width, hidden), (hidden, width)
    fc1, fc2 = named.get("gate_up_proj") or named["up_proj"], named["down_proj"]
    return fc2[0], fc1[1:], fc2[1:]


@pytest.mark.parametrize("model_type", [m for m in BUILT if m != "jetmoe"])
def test_layers_and_sizes(model_type):
    ingested, model = build(model_type)
    built = experts_of(model)
    assert ingested.moe_layers == tuple(sorted(built))
    for layer, module in built.items():
        problem = ingested.problem_of(layer)
        num_experts, fc1, fc2 = shapes(module)
        width, hidden = problem.intermediate_size, problem.hidden_size
        assert width != hidden, "sizes that are equal cannot be told apart: make them differ"
        rows = width * (2 if problem.is_gated else 1)
        assert num_experts == problem.num_experts
        assert (fc1, fc2) in (((rows, hidden), (hidden, width)), ((hidden, rows), (width, hidden)))
        assert any(name.endswith("bias") for name, _ in module.named_parameters()) is problem.bias


def test_layers_and_sizes_of_jetmoe():
    """Its expert modules are single projections."""
    ingested, model = build("jetmoe")
    inputs = in_layers(model, lambda path, module: path == "mlp.input_linear")
    problem = ingested.problem_of(0)
    assert ingested.moe_layers == tuple(sorted(inputs))
    assert tuple(inputs[0].weight.shape) == (problem.num_experts, 2 * problem.intermediate_size, problem.hidden_size)


@pytest.mark.parametrize("model_type", BUILT)
def test_shared_experts(model_type):
    ingested, model = build(model_type)
    built = in_layers(model, lambda path, module: re.search(r"(^|\.)shared_(experts?|mlp)$", path))
    gates = in_layers(model, lambda path, module: path.endswith("shared_expert_gate"))
    for layer in ingested.moe_layers:
        problem = ingested.problem_of(layer)
        width = None
        if layer in built:
            downs = [p for n, p in built[layer].named_parameters() if re.search(r"(down_proj|output_linear|w2)", n)]
            width = sum(p.shape[-1] * (p.shape[0] if p.ndim == 3 else 1) for p in downs)
        assert problem.shared_intermediate_size == width
        assert bool(problem.num_shared_experts) is (width is not None)
        assert problem.shared_expert_gate is (layer in gates)


@pytest.mark.parametrize("model_type", [m for m in BUILT if m not in ("dbrx", "jetmoe")])
def test_activation(model_type):
    ingested, model = build(model_type)
    fc1 = torch.linspace(-30, 30, 60).reshape(6, 10)
    for layer, module in experts_of(model).items():
        problem = ingested.problem_of(layer)
        activation = Activation.of(problem)
        if not problem.is_gated:
            torch.testing.assert_close(activation(fc1), module.act_fn(fc1))
            continue
        if hasattr(module, "_apply_gate"):
            expected = module._apply_gate(fc1)
        else:
            gate, up = fc1.chunk(2, dim=-1)
            expected = module.act_fn(gate) * up
        halves = (fc1[..., ::2], fc1[..., 1::2]) if model_type == "gpt_oss" else fc1.chunk(2, dim=-1)
        torch.testing.assert_close(activation(*halves), expected)


def run(router, num_experts):
    """Logits, weights and ids of a router with random weights, the bias that it was given, and its table of ids."""
    router = router.to_empty(device="cpu").float().eval()
    generator = torch.Generator().manual_seed(0)
    tensors = {**dict(router.named_parameters()), **dict(router.named_buffers())}
    for name, tensor in tensors.items():
        if tensor.dtype.is_floating_point:
            tensor.data = torch.randn(tensor.shape, generator=generator) * tensor.shape[-1] ** -0.5
        else:
            tensor.data = torch.randint(num_experts, tensor.shape, generator=generator)
        if name.endswith(("scale", "norm.weight")):
            tensor.data.fill_(1.0)
    bias = next((t.data for name, t in tensors.items() if name.endswith("e_score_correction_bias")), None)
    width = next(p.shape[-1] for p in router.parameters() if p.ndim == 2)
    hidden = torch.randn(1, TOKENS, width, generator=generator)
    arguments = {"hidden_states": hidden if type(router).__name__ in TAKE_BATCHES else hidden[0]}
    for name in inspect.signature(router.forward).parameters:
        if "bias" in name:
            arguments[name] = bias = torch.randn(num_experts, generator=generator) * 0.1
        elif name == "input_ids":
            arguments[name] = torch.arange(TOKENS)[None]
    with torch.no_grad():
        logits, weights, ids, *_ = router(**arguments)
    flat = [output.reshape(TOKENS, -1) for output in (logits.float(), weights.float(), ids)]
    return *flat, bias, getattr(router, "tid2eid", None)


@pytest.mark.parametrize("model_type", NO_NAMED_METHOD)
def test_routing_without_a_named_method(model_type):
    ingested, _ = build(model_type)
    assert {group.problem.routing for group in ingested.groups} == {RoutingMethodType.UNSPECIFIED}
    assert any(word in note for note in ingested.notes for word in ("rout", "scored"))


@pytest.mark.parametrize("model_type", sorted({*BUILT} - {*NO_NAMED_METHOD} - {*ROUTER_TAKES_PART_OF_THE_BLOCK}))
def test_routing(model_type):
    ingested, model = build(model_type)
    routers = in_layers(
        model, lambda path, module: re.search(r"(Router|Gate)$", type(module).__name__) and "attn" not in path
    )
    layers = [group.layers[0] for group in ingested.groups if group.layers[0] in routers]
    assert layers
    for layer in layers:
        problem = ingested.problem_of(layer)
        logits, weights, ids, bias, table = run(routers[layer], problem.num_experts)
        assert problem.top_k == ids.shape[-1]
        assert problem.routing_bias is (bias is not None)
        scale = problem.routed_scaling_factor if model_type in SCALED_OUTSIDE else 1.0
        if "gemma" in model_type:
            logits = logits.log()  # its router gives probabilities
        if model_type == "openai_privacy_filter":
            scale = problem.top_k  # its MoE block undoes a division by top_k
        hashed = {"input_ids_T": torch.arange(TOKENS), "table_VK": table} if problem.hashed_routing else {}
        our_ids, our_weights = route(problem, logits, bias_E=bias, **hashed)
        dense = torch.zeros_like(logits)
        torch.testing.assert_close(
            dense.scatter_add(1, our_ids.long(), our_weights), dense.scatter_add(1, ids, weights * scale)
        )


@pytest.mark.parametrize("model_type", SAME_AS)
def test_configs_without_a_model(model_type):
    family, own, others = SAME_AS[model_type]
    assert ingest(config_class(model_type)(**own)).groups == ingest(config_class(family)(**others)).groups


@pytest.mark.parametrize(("model_type", "reason"), REFUSED.items())
def test_refused(model_type, reason):
    with pytest.raises(IngestError, match=re.escape(reason)):
        ingest(config_class(model_type)())


def test_every_family_with_experts_is_listed():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

    def mentions_experts(part):
        return isinstance(part, dict) and (
            any(key in part for key in NUM_EXPERTS) or any(mentions_experts(value) for value in part.values())
        )

    found = set()
    for model_type in CONFIG_MAPPING_NAMES:
        try:
            config = CONFIG_MAPPING[model_type]().to_dict()
        except Exception:  # a family whose default configuration is invalid by its own rules
            continue
        if mentions_experts(config):
            found.add(model_type)
    assert found <= {*BUILT, *SAME_AS, *REFUSED}
