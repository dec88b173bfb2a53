"""The format of the experts, from every kind of quantization config."""

import json

import pytest

from moe_core.contract.vocabulary import QuantAlgo
from moe_core.ingest import IngestError, ingest

ALGO = QuantAlgo
BASE = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "hidden_size": 512,
}


def formats(quant, **keys):
    """(algorithm, group size) of each layer, draft layers last."""
    model = ingest(BASE | {"quantization_config": quant} | keys)
    problems = [model.problem_of(layer) for layer in model.moe_layers + model.draft_layers]
    return [(problem.quant, problem.quant_group_size) for problem in problems]


def notes(quant, **keys):
    return " / ".join(ingest(BASE | {"quantization_config": quant} | keys).notes)


def compressed(weights, inputs=None, **keys):
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]} | keys


def numbers(bits, strategy, group_size=None, kind="float", **keys):
    return {"num_bits": bits, "type": kind, "strategy": strategy, "group_size": group_size, "symmetric": True} | keys


TOKEN_FP8 = numbers(8, "token", dynamic=True)
FP4_16 = numbers(4, "tensor_group", 16)
FP4_32 = numbers(4, "group", 32)


@pytest.mark.parametrize(
    ("quant", "algo", "group"),
    [
        (None, ALGO.NONE, None),
        ({}, ALGO.NONE, None),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ALGO.FP8_BLOCK_SCALES, 128),
        ({"quant_method": "fp8", "weight_block_size": [1, 32], "scale_fmt": "ue8m0"}, ALGO.MXFP8, 32),
        ({"quant_method": "fp8", "activation_scheme": "static"}, ALGO.FP8, None),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, ALGO.FP8, None),
        ({"quant_method": "fbgemm_fp8"}, ALGO.FP8_PER_CHANNEL_PER_TOKEN, None),
        ({"quant_method": "mxfp4"}, ALGO.W4A16_MXFP4, 32),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, ALGO.W4A16_AWQ, 64),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 128}, ALGO.W4A16_AWQ, 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, ALGO.W4A16_GPTQ, 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": 64}, ALGO.W8A16, 64),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, ALGO.W4A16_GPTQ, 128),
        ({"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_awq"}, ALGO.W4A16_AWQ, 128),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, ALGO.NVFP4, 16),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}, ALGO.NVFP4, 16),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, ALGO.FP8, None),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, ALGO.FP8_BLOCK_SCALES, 128),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ", "group_size": 128}, ALGO.W4A8_AWQ, 128),
        ({"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "FP8"}, ALGO.NONE, None),
        ({"quant_algo": "W4A16_NVFP4"}, ALGO.W4A16_NVFP4, 16),
        (compressed(numbers(8, "tensor"), numbers(8, "tensor")), ALGO.FP8, None),
        (compressed(numbers(8, "channel"), TOKEN_FP8), ALGO.FP8_PER_CHANNEL_PER_TOKEN, None),
        (compressed(numbers(8, "block", block_structure=[128, 128]), TOKEN_FP8), ALGO.FP8_BLOCK_SCALES, 128),
        (compressed(numbers(8, "group", 32), numbers(8, "group", 32)), ALGO.MXFP8, 32),
        (compressed(FP4_16, FP4_16), ALGO.NVFP4, 16),
        (compressed(FP4_16), ALGO.W4A16_NVFP4, 16),
        (compressed(FP4_32), ALGO.W4A16_MXFP4, 32),
        (compressed(FP4_32, TOKEN_FP8), ALGO.W4A8_MXFP4_FP8, 32),
        (compressed(FP4_32, numbers(8, "group", 32)), ALGO.W4A8_MXFP4_MXFP8, 32),
        (compressed(numbers(4, "group", 32, "int")), ALGO.W4A16_GPTQ, 32),
        (compressed(numbers(4, "group", 128, "int", symmetric=False)), ALGO.W4A16_AWQ, 128),
        (compressed(numbers(4, "channel", -1, "int")), ALGO.W4A16, None),
        (compressed(numbers(8, "channel", None, "int")), ALGO.W8A16, None),
        (compressed(numbers(8, "channel", None, "int"), numbers(8, "token", None, "int")), ALGO.W8A8_SQ, None),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {
                    "weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32},
                    "input_tensors": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"},
                },
            },
            ALGO.W4A8_MXFP4_FP8,
            32,
        ),
    ],
)
def test_format(quant, algo, group):
    assert formats(quant) == [(algo, group)] * 4


@pytest.mark.parametrize(
    ("quant", "word"),
    [
        ({"quant_method": "hieroglyphs"}, "quant_method hieroglyphs"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method bitsandbytes"),
        ({"group_size": 64, "bits": 4}, "quant_method None"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "fp8 in blocks of [64, 64]"),
        ({"quant_method": "awq", "bits": 3}, "AWQ with 3 bits"),
        ({"quant_method": "gptq", "bits": 2}, "GPTQ with 2 bits"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP3"}, "quant_algo NVFP3"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "MIXED_PRECISION without quantized_layers"),
        ({"quant_method": "modelopt"}, "ModelOpt without quant_algo"),
        ({"quant_method": "compressed-tensors"}, "without config_groups"),
        (compressed(FP4_32, FP4_32), "weights float4 per group of 32, activations float4"),
        (compressed(numbers(8, "channel")), "weights float8 per channel, activations not quantized"),
        (compressed(numbers(4, "group", 32, "int"), TOKEN_FP8), "weights int4 per group of 32"),
        (compressed(None), "does not quantize weights"),
        (compressed({"num_bits": "four"}), "keys that are not understood"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp6"}}}, "a Quark config"),
    ],
)
def test_a_format_without_a_name_is_unknown_and_never_unquantized(quant, word):
    assert formats(quant) == [(None, None)] * 4
    assert "the format of the experts is unknown: " in notes(quant)
    assert word in notes(quant)


FP8_BLOCK = {"quant_method": "fp8", "weight_block_size": [128, 128]}
BLOCK, BARE = (ALGO.FP8_BLOCK_SCALES, 128), (ALGO.NONE, None)


@pytest.mark.parametrize("key", ["modules_to_not_convert", "exclude_modules", "ignored_layers", "ignore"])
def test_layers_that_are_left_out(key):
    left_out = ["lm_head", "model.layers.0.mlp", "model.layers.2.mlp.experts", "model.layers.3.mlp.gate"]
    assert formats(FP8_BLOCK | {key: left_out}) == [BARE, BLOCK, BARE, BLOCK]


def test_experts_that_are_left_out_in_part_are_unknown():
    quant = FP8_BLOCK | {"modules_to_not_convert": ["model.layers.1.mlp.experts.0.down_proj"]}
    assert formats(quant) == [BLOCK, (None, None), BLOCK, BLOCK]
    assert "projections of one expert differ in layer 1" in notes(quant)


def test_draft_layers_may_be_left_out():
    left_out = {"modules_to_not_convert": ["re:mtp.*"]}
    assert formats(FP8_BLOCK | left_out, num_nextn_predict_layers=1) == [BLOCK] * 4 + [BARE]


def test_gptq_leaves_modules_out_or_gives_them_other_bits():
    quant = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    gptq = (ALGO.W4A16_GPTQ, 128)
    assert formats(quant | {"dynamic": {r"-:.*layers\.0\..*": {}}}) == [BARE, gptq, gptq, gptq]
    own = quant | {"dynamic": {r"+:.*layers\.1\..*experts.*": {"bits": 8}, r"-:.*attn.*": {}}}
    assert formats(own) == [gptq, (None, None), gptq, gptq]
    assert "settings of their own" in notes(own)


def test_auto_round_leaves_wide_modules_out():
    extra = {"model.layers.0.mlp.experts": {"bits": 16}, "model.layers.1.mlp.gate": {"bits": 16}}
    quant = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "extra_config": extra}
    assert formats(quant) == [BARE] + [(ALGO.W4A16_GPTQ, 128)] * 3


def test_quark_by_module():
    bits8 = {"weight": {"dtype": "int8", "qscheme": "per_channel"}}
    bits4 = {"weight": {"dtype": "uint4", "qscheme": "per_group", "group_size": 128}}
    quant = {
        "quant_method": "quark",
        "global_quant_config": bits8,
        "layer_quant_config": {"*layers.1.mlp.experts*": bits4},
        "exclude": ["model.layers.3.mlp.experts", "lm_head"],
    }
    assert formats(quant) == [(ALGO.W8A16, None), (ALGO.W4A16_AWQ, 128), (ALGO.W8A16, None), BARE]


def test_modelopt_mixed_precision():
    nvfp4 = {"quant_algo": "NVFP4", "group_size": 16}
    layers = {
        "model.layers.0.mlp.experts": nvfp4,
        "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
        **{
            f"model.layers.1.mlp.experts.{e}.{p}_proj": {"quant_algo": "FP8"}
            for e in "012"
            for p in ("gate", "up", "down")
        },
        **{f"model.layers.2.mlp.experts.0.{p}_proj": nvfp4 for p in ("gate", "up")},
        "model.layers.2.mlp.experts.0.down_proj": {"quant_algo": "FP8"},
    }
    quant = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    assert formats(quant) == [(ALGO.NVFP4, 16), (ALGO.FP8, None), (None, None), BARE]
    assert "projections of one expert differ in layer 2" in notes(quant)


def test_compressed_tensors_with_several_groups():
    groups = {
        "group_0": {"targets": ["Linear"], "weights": numbers(8, "channel"), "input_activations": TOKEN_FP8},
        "group_1": {"targets": [r"re:.*layers\.[01]\..*experts.*"], "weights": FP4_16, "input_activations": FP4_16},
    }
    quant = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["re:.*layers.3.mlp.*"]}
    per_channel = (ALGO.FP8_PER_CHANNEL_PER_TOKEN, None)
    assert formats(quant) == [(ALGO.NVFP4, 16), (ALGO.NVFP4, 16), per_channel, BARE]


def test_experts_that_no_group_targets_are_not_quantized():
    group = {"targets": [r"re:.*self_attn.*"], "weights": FP4_16, "input_activations": FP4_16}
    assert formats({"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}) == [BARE] * 4


@pytest.mark.parametrize("where", ["config", "quantization_config"])
@pytest.mark.parametrize(
    ("word", "expected"),
    [("fp4", (ALGO.W4A8_MXFP4_MXFP8, 32)), ("fp8", BLOCK), ("bf16", BARE), ("fp5", (None, None))],
)
def test_experts_with_a_dtype_of_their_own(where, word, expected):
    own = {"expert_dtype": word}
    found = formats(FP8_BLOCK | own) if where == "quantization_config" else formats(FP8_BLOCK, **own)
    assert found == [expected] * 4


@pytest.mark.parametrize(
    ("quant", "note"),
    [
        (compressed(numbers(4, "group", 32, "int")), "int4 per group of 32 without zero points: read as W4A16_GPTQ"),
        ({"quant_method": "fp8"}, "activation scales are computed at run time"),
        (FP8_BLOCK | {"expert_dtype": "fp4"}, "served with MXFP8 activations"),
    ],
)
def test_readings_are_noted(quant, note):
    assert note in notes(quant)


@pytest.fixture
def folder(tmp_path):
    def write(in_file, in_config=None):
        (tmp_path / "config.json").write_text(json.dumps(BASE | {"quantization_config": in_config}))
        (tmp_path / "hf_quant_config.json").write_text(json.dumps(in_file))
        return tmp_path

    return write


def test_the_file_beside_the_config(folder):
    in_file = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["model.layers.0*"]}}
    groups = ingest(folder(in_file, {"quant_method": "modelopt", "quant_algo": "NVFP4"})).groups
    assert [(g.layers, g.problem.quant) for g in groups] == [((0,), ALGO.NONE), ((1, 2, 3), ALGO.NVFP4)]


def test_the_file_beside_the_config_may_be_flat(folder):
    assert ingest(folder({"quant_algo": "FP8"})).groups[0].problem.quant is ALGO.FP8


def test_a_file_about_the_cache_alone_leaves_the_experts_to_the_config(folder):
    about_the_cache = {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}
    assert ingest(folder(about_the_cache, FP8_BLOCK)).groups[0].problem.quant is ALGO.FP8_BLOCK_SCALES
    assert ingest(folder(about_the_cache)).groups[0].problem.quant is ALGO.NONE


def test_a_requantized_checkpoint_may_still_have_an_expert_dtype(folder):
    source = folder({"quantization": {"quant_algo": "NVFP4"}}, FP8_BLOCK | {"expert_dtype": "fp4"})
    assert ingest(source).groups[0].problem.quant is ALGO.NVFP4


def test_the_two_files_must_agree(folder):
    source = folder({"quantization": {"quant_algo": "NVFP4"}}, {"quant_method": "modelopt", "quant_algo": "FP8"})
    with pytest.raises(IngestError, match=r"quant_algo NVFP4 in hf_quant_config\.json and FP8 in the config"):
        ingest(source)
