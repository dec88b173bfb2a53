"""What transformers saves under a family's own names is what its modules hold."""

import pytest
import torch

from moe_core.checkpoint import Checkpoint, load_layer, load_router
from moe_core.ingest import ingest
from moe_core.testing.numerics import assert_bitwise_equal

transformers = pytest.importorskip("transformers", reason="the other writer of these checkpoints is not installed")

SIZES = {
    "vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 16, "num_experts_per_tok": 2, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 0,
    "pad_token_id": 0,
}  # fmt: skip
NARROW = {"intermediate_size": 48, "moe_intermediate_size": 16}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
GROUPS = {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 0}
FAMILIES = {
    "Mixtral": {"num_local_experts": 4, "intermediate_size": 16},
    "Phimoe": {"num_local_experts": 4, "intermediate_size": 16},
    "MiniMaxM2": {"num_local_experts": 4, "intermediate_size": 16},
    "GptOss": {"num_local_experts": 4, "intermediate_size": 16, "rope_scaling": None},
    "GraniteMoe": {"num_local_experts": 4, "intermediate_size": 16},
    "Llama4Text": {"num_local_experts": 4, "intermediate_size": 16, "intermediate_size_mlp": 48},
    "Olmoe": {"num_experts": 4, "intermediate_size": 16},
    "Qwen3Moe": {"num_experts": 4, "mlp_only_layers": [], **NARROW},
    "DeepseekV3": {"n_routed_experts": 4, **NARROW, **LATENT, **GROUPS},
    "Glm4Moe": {"n_routed_experts": 4, **NARROW, **GROUPS},
    "NemotronH": {"n_routed_experts": 4, "layers_block_type": ["moe", "moe"], **NARROW, **GROUPS},
}


LAYER = 1


@pytest.fixture(params=FAMILIES)
def model(request):
    """A tiny model, all of whose experts and routers differ."""
    config = getattr(transformers, f"{request.param}Config")(**SIZES, **FAMILIES[request.param])
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(config).bfloat16()
    for name, tensor in made.state_dict().items():
        if f"layers.{LAYER}." in name and name.rpartition(".")[2].startswith(
            ("gate_up", "up", "down", "weight", "bias", "e_")
        ):
            tensor.copy_(torch.randn(tensor.shape))
    return made


def of_layer(model, ending):
    """The only tensor of the layer whose name ends so; ``None`` without one."""
    found = [t for name, t in model.state_dict().items() if f"layers.{LAYER}." in name and name.endswith(ending)]
    assert len(found) <= 1
    return found[0] if found else None


def expected_experts(model):
    """Gate, up and down, rows first, as the family's module computes with them."""
    family = type(model.config).__name__
    down, fc1 = of_layer(model, "experts.down_proj"), of_layer(model, "experts.gate_up_proj")
    if fc1 is None:
        return {"w1_EIH": of_layer(model, "experts.up_proj"), "w2_EHI": down}
    if family in ("GptOssConfig", "Llama4TextConfig"):
        fc1, down = fc1.mT, down.mT
    interleaved = family == "GptOssConfig"
    gate, up = (fc1[:, 0::2], fc1[:, 1::2]) if interleaved else fc1.chunk(2, dim=1)
    experts = {"w1_EIH": gate, "w2_EHI": down, "w3_EIH": up}
    if interleaved:
        bias = of_layer(model, "gate_up_proj_bias")
        experts |= {"b1_EI": bias[:, 0::2], "b3_EI": bias[:, 1::2], "b2_EH": of_layer(model, "down_proj_bias")}
    return experts


def test_saved_experts_are_those_of_the_module(model, tmp_path):
    model.save_pretrained(tmp_path)
    problem = ingest(tmp_path).problem_of(LAYER)
    loaded = load_layer(Checkpoint.open(tmp_path), LAYER, problem).tensors()
    expected = expected_experts(model)
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        assert_bitwise_equal(loaded[name], tensor)


def test_saved_routers_are_those_of_the_module(model, tmp_path):
    model.save_pretrained(tmp_path)
    router = load_router(Checkpoint.open(tmp_path), LAYER, ingest(tmp_path).problem_of(LAYER))
    assert_bitwise_equal(router.weight_EM, of_layer(model, (".gate.weight", "router.weight")))
    for found, ending in ((router.bias_E, "router.bias"), (router.correction_bias_E, "e_score_correction_bias")):
        expected = of_layer(model, ending)
        assert (found is None) == (expected is None)
        if found is not None:
            assert_bitwise_equal(found.to(expected.dtype), expected)
