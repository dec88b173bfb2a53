"""What does not fit is told with what was found and what is needed, all of it at once."""

import json

import pytest
import torch
from safetensors.torch import save_file

from moe_core.checkpoint import Checkpoint, CheckpointError, layers_with_experts, load_layer
from moe_core.contract.vocabulary import QuantAlgo

LAYER = 3
EXPERT = "model.layers.3.mlp.experts.1"


def refusal(written, problem=None, **arguments):
    with pytest.raises(CheckpointError) as error:
        load_layer(written.checkpoint, LAYER, problem or written.problem, **arguments)
    return error.value


def test_everything_that_is_wrong_is_told_at_once(written):
    given = written("Qwen")
    tensors = given.tensors
    tensors[f"{EXPERT}.gate_prj.weight"] = tensors.pop(f"{EXPERT}.gate_proj.weight")
    tensors[f"{EXPERT}.up_proj.weight"] = torch.zeros(64, 32, dtype=torch.bfloat16)
    tensors[f"{EXPERT}.down_proj.weight"] = tensors[f"{EXPERT}.down_proj.weight"].float()
    assert refusal(given.rewritten(tensors)).lines == (
        f"{EXPERT}.gate_proj.weight: found no such key, needed [32, 64]; did you mean {EXPERT}.gate_prj.weight?",
        f"{EXPERT}.gate_prj.weight: found a key that may change what the experts compute, needed those of 4 experts "
        "named as in Qwen, DeepSeek, GLM, not quantized, without bias",
        f"{EXPERT}.down_proj.weight: found torch.float32, needed torch.bfloat16",
        f"{EXPERT}.up_proj.weight: found [64, 32], needed [32, 64]",
    )


def test_a_message_stays_readable(written):
    given = written("Qwen", num_experts=8)
    error = refusal(given, given.problem.evolve(num_experts=64, top_k=3))
    assert len(error.lines) == 3 * 56
    assert str(error).count("\n") == 17
    assert str(error).endswith("… and 152 more")


def test_experts_beyond_those_of_the_problem(written):
    given = written("Mixtral")
    assert len(refusal(given, given.problem.evolve(num_experts=3)).lines) == 3


def test_keys_of_other_ranks_are_checked_too(written):
    given = written("Qwen")
    del given.tensors[f"{EXPERT}.up_proj.weight"]
    error = refusal(given.rewritten(given.tensors), slots=(2, 4))
    assert error.lines == (f"{EXPERT}.up_proj.weight: found no such key, needed [32, 64]",)


def test_another_quantization_than_the_problem_says(written):
    given = written("ModelOpt NVFP4")
    error = refusal(given, given.problem.evolve(quant=QuantAlgo.NONE))
    assert sum("found torch.uint8, needed torch.bfloat16" in line for line in error.lines) == 12
    assert f"{EXPERT}.up_proj.weight_scale_2: found a key that may change" in "\n".join(error.lines)


def test_a_bias_that_the_problem_denies(written):
    given = written("gpt-oss")
    lines = refusal(given, given.problem.evolve(bias=False)).lines
    assert [line.partition(":")[0].rpartition(".")[2] for line in lines] == ["gate_up_proj_bias", "down_proj_bias"]
    assert all(line.endswith("without bias") for line in lines)


def test_a_bias_that_is_missing(written):
    given = written("Qwen")
    lines = refusal(given, given.problem.evolve(bias=True)).lines
    assert lines[0] == "model.layers.3.mlp.experts.0.gate_proj.bias: found no such key, needed [32]"


def test_scales_of_inputs_change_what_is_computed(written):
    """AWQ's pre_quant_scale multiplies the experts' input, and there is no place for it."""
    given = written("ModelOpt int4")
    given.tensors[f"{EXPERT}.up_proj.pre_quant_scale"] = torch.ones(64)
    (line,) = refusal(given.rewritten(given.tensors)).lines
    assert line.startswith(f"{EXPERT}.up_proj.pre_quant_scale: found a key that may change what the experts compute")


@pytest.mark.parametrize("name", ["AWQ", "gpt-oss MXFP4", "GPTQ", "ModelOpt NVFP4", "W4A8 custom"])
def test_a_cut_through_a_byte(written, name):
    given = written(name)
    size = given.problem.intermediate_size
    for line in refusal(given, tp=(1, size)).lines:
        assert f"found a cut at 1 of {size}, needed an even number: two codes share a byte" in line
        assert "down" in line


def test_halves_that_do_not_begin_at_a_scale(written):
    given = written("Step FP8")
    tensors = {k: t for k, t in given.tensors.items() if ".moe." not in k}
    stem = "model.layers.3.mlp.experts"
    tensors |= {
        f"{stem}.gate_up_proj": torch.zeros(3, 2 * 192, 128).to(torch.float8_e4m3fn),
        f"{stem}.gate_up_proj_scale_inv": torch.zeros(3, 3, 1),
        f"{stem}.down_proj": torch.zeros(3, 128, 192).to(torch.float8_e4m3fn),
        f"{stem}.down_proj_scale_inv": torch.zeros(3, 1, 2),
    }
    lines = refusal(given.rewritten(tensors), given.problem.evolve(intermediate_size=192)).lines
    assert any("a second half that begins at 192 of 384, needed a multiple of 128" in line for line in lines)


def test_columns_in_order_of_importance(written):
    given = written("GPTQ")
    given.tensors[f"{EXPERT}.down_proj.g_idx"] = given.tensors[f"{EXPERT}.down_proj.g_idx"].flip(0)
    (line,) = refusal(given.rewritten(given.tensors)).lines
    assert line.startswith(f"{EXPERT}.down_proj.g_idx: found columns grouped by importance, needed groups of 32")


def test_biases_that_are_zero_are_none(written, assert_same_experts):
    given = written("GPTQ")
    given.tensors[f"{EXPERT}.down_proj.bias"] = torch.zeros(64)
    assert_same_experts(load_layer(given.rewritten(given.tensors).checkpoint, LAYER, given.problem), given.weights)
    given.tensors[f"{EXPERT}.down_proj.bias"][3] = 1
    (line,) = refusal(given.rewritten(given.tensors)).lines
    assert line == f"{EXPERT}.down_proj.bias: found values, needed zeros: the problem has no such tensor"


def test_static_scales_of_inputs_that_are_missing_or_no_scales(written):
    given = written("ModelOpt FP8")
    del given.tensors[f"{EXPERT}.up_proj.input_scale"]
    given.tensors[f"{EXPERT}.gate_proj.input_scale"] = torch.tensor(0.0)
    given.tensors[f"{EXPERT}.down_proj.input_scale"] = torch.tensor([float("nan"), 1.0])
    assert refusal(given.rewritten(given.tensors), slots=(2, 4)).lines == (
        f"{EXPERT}.up_proj.input_scale: found no such key, needed [1]",
        f"{EXPERT}.down_proj.input_scale: found [2], needed [1]",
        f"{EXPERT}.gate_proj.input_scale: found 0.0, needed positive numbers: inputs are divided by them",
        f"{EXPERT}.down_proj.input_scale: found [nan, 1.0], needed positive numbers: inputs are divided by them",
    )


def test_a_correction_bias_among_the_experts_is_the_routers(written, assert_same_experts):
    given = written("Qwen")
    given.tensors["model.layers.3.mlp.experts.e_score_correction_bias"] = torch.zeros(4)
    assert_same_experts(load_layer(given.rewritten(given.tensors).checkpoint, LAYER, given.problem), given.weights)


@pytest.mark.parametrize(
    ("name", "key", "value"), [("GPTQ", "checkpoint_format", "gptq_v2"), ("AWQ", "version", "gemv")]
)
def test_packings_that_look_alike_are_told_apart_by_the_config(written, name, key, value):
    given = written(name)
    (given.folder / "config.json").write_text(json.dumps({"text_config": {"quantization_config": {key: value}}}))
    assert refusal(given).lines[0].startswith(f"quantization_config.{key}: found {value}, needed ")


def test_scales_of_different_types(written):
    given = written("DeepSeek FP8")
    key = f"{EXPERT}.up_proj.weight_scale_inv"
    given.tensors[key] = given.tensors[key].half()
    assert refusal(given.rewritten(given.tensors)).lines == (f"{key}: found torch.float16, needed torch.float32",)


def test_layers_without_experts(written):
    given = written("Qwen")
    with pytest.raises(CheckpointError) as error:
        load_layer(given.checkpoint, 0, given.problem)
    assert error.value.lines[0].startswith("found no key of experts; needed experts that are gated, under one of: ")
    assert error.value.lines[1] == "layers with experts are 3 … 3, 1 of them"


def test_experts_without_a_gate_for_a_problem_with_one(written):
    given = written("Nemotron-H")
    error = refusal(given, given.problem.evolve(activation="Swiglu"))
    assert error.lines[0].endswith("gate_proj.weight: found no such key, needed [32, 64]")


def test_experts_in_two_places(written):
    given = written("Qwen")
    twice = {k.replace(".mlp.experts.", ".vision_mlp.experts."): t.clone() for k, t in given.tensors.items()}
    (line,) = refusal(given.rewritten(given.tensors | twice)).lines
    assert line.endswith("in model.layers.3.mlp., model.layers.3.vision_mlp., needed them in one place")


def test_draft_and_vision_layers_are_not_those_of_the_model(written):
    given = written("Qwen")
    for stem in ("mtp", "model.vision_tower"):
        beside = {k.replace("model.layers", f"{stem}.layers"): t.clone() for k, t in given.tensors.items()}
        given = given.rewritten(given.tensors | beside)
    assert layers_with_experts(given.checkpoint) == (3,)
    load_layer(given.checkpoint, LAYER, given.problem)


def test_nothing_to_read(tmp_path):
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointError, match="found no safetensors file"):
        Checkpoint.open(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        Checkpoint.open(tmp_path / "nowhere.safetensors")


def test_a_file_that_is_no_safetensors_is_named(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"cannot be read"):
        Checkpoint.open(tmp_path)


def test_a_key_in_two_files(tmp_path):
    for name in ("a", "b"):
        save_file({"key": torch.zeros(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(CheckpointError, match=r"key: found in a.safetensors and b.safetensors, needed once"):
        Checkpoint.open(tmp_path)


def test_a_missing_shard_is_named(written):
    given = written("Qwen")
    (given.folder / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors" in str(refusal(given))
