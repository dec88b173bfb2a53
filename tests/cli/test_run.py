"""``moe run``, on the processor."""

import json

import pytest
import torch
from safetensors.torch import save_file

from moe_core.cli.reduce import MOST_EXPERTS, MOST_HIDDEN, reduced
from moe_core.contract.problem import MoEProblem
from moe_core.contract.report import MoEResolutionReport
from moe_core.contract.vocabulary import QuantAlgo, RoutingMethodType
from moe_core.routing import RoutingConfig

FEW = ("--device", "cpu", "--tokens", "5", "--repeat", "1")


@pytest.fixture(autouse=True)
def _one_thread():
    """Threads that wait for each other on a busy machine take a hundred times the time of these small layers."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_layer_matches_its_twin(moe, qwen):
    said = moe("run", qwen, *FEW)
    assert said.status == 0
    first, second = said.out.splitlines()[:2]
    assert first.startswith("error ")
    assert "within the tolerance" in first
    assert second.startswith("time ")
    assert "hidden_size 2048 -> 512" in said.out
    assert "\nwinner " in said.out


def test_json_has_numbers_and_the_report(moe, deepseek):
    found = moe("run", deepseek, *FEW, "--unquantized", "--json").json
    assert found["passed"] is True
    assert 0 < found["relative_error"] <= found["tolerance"]
    assert "quant FP8_BLOCK_SCALES -> NONE" in found["reduced"]
    assert MoEResolutionReport.model_validate(found["report"]).ok


def test_equal_seeds_give_equal_errors(moe, qwen):
    errors = [moe("run", qwen, *FEW, "--seed", seed, "--json").json["relative_error"] for seed in (1, 1, 2)]
    assert errors[0] == errors[1] != errors[2]


def test_without_a_winner_nothing_runs(moe, qwen):
    said = moe("run", qwen, *FEW, "--backend", "TRTLLM", "--strict")
    assert said.status == 1
    assert "failed   TRTLLM (asked by argument) cannot run" in said.out


def test_outside_the_tolerance_is_status_1(moe, qwen, monkeypatch):
    from moe_core.cli import trial

    monkeypatch.setattr(trial, "tolerance_of", lambda candidate, dtype: 1e-9)
    said = moe("run", qwen, *FEW)
    assert said.status == 1
    assert "outside the tolerance" in said.out


def problem(**changes):
    sizes = {"hidden_size": 7168, "intermediate_size": 2048, "num_experts": 256, "top_k": 8}
    return MoEProblem(**{"quant": QuantAlgo.NONE, "routing": RoutingMethodType.DEEPSEEK_V3, **sizes, **changes})


def test_reduced_keeps_the_ratio_of_widths():
    small, changes = reduced(problem())
    assert (small.hidden_size, small.intermediate_size, small.num_experts) == (448, 128, 16)
    assert changes == ("hidden_size 7168 -> 448", "intermediate_size 2048 -> 128", "num_experts 256 -> 16")


def test_reduced_cuts_no_quantization_group():
    small, _ = reduced(problem(quant=QuantAlgo.FP8_BLOCK_SCALES, quant_group_size=128))
    assert (small.hidden_size, small.intermediate_size) == (896, 256)


@pytest.mark.parametrize(("groups", "kept"), [(8, 4), (8, 1), (1, 1), (4, 2)])
def test_reduced_grouped_routing_still_routes(groups, kept):
    small, _ = reduced(problem(num_expert_groups=groups, topk_group=kept))
    config = RoutingConfig.of(small)
    assert config.num_experts // config.num_groups * config.topk_group >= config.top_k
    assert config.num_experts // config.num_groups >= 2


def test_reduced_leaves_small_problems_alone():
    small = problem(hidden_size=MOST_HIDDEN, num_experts=MOST_EXPERTS)
    assert reduced(small) == (small, ())


def test_reduced_stops_at_odd_sizes():
    small, changes = reduced(problem(hidden_size=2050, intermediate_size=704, num_experts=18))
    assert (small.hidden_size, small.intermediate_size, small.num_experts) == (1025, 352, 9)
    assert len(changes) == 3


SIZES = {"hidden_size": 64, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def checkpoint(folder, experts, **config):
    """A folder with a small Qwen3-MoE: two layers, the second with `experts` by path."""
    said = {"model_type": "qwen3_moe", "num_hidden_layers": 2, "mlp_only_layers": [0], "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps({**said, **SIZES, **config}))
    save_file({f"model.layers.1.mlp.{path}": t for path, t in experts.items()}, folder / "model.safetensors")
    return folder


def random_experts():
    projections = {"gate_proj": (32, 64), "up_proj": (32, 64), "down_proj": (64, 32)}
    generator = torch.Generator().manual_seed(0)
    return {
        f"experts.{e}.{name}.weight": torch.randn(shape, generator=generator).bfloat16()
        for e in range(4)
        for name, shape in projections.items()
    }


def test_a_folder_with_weights_lends_its_experts_and_router(moe, tmp_path):
    tensors = random_experts() | {"gate.weight": torch.randn(4, 64).bfloat16()}
    folder = checkpoint(tmp_path, tensors)
    said = moe("run", folder, *FEW)
    assert said.status == 0
    assert f"weights layer 1 of {tmp_path.name}, with its router" in " ".join(said.out.split())
    assert "reduced" not in said.out
    del tensors["gate.weight"]
    found = moe("run", checkpoint(tmp_path, tensors), *FEW, "--json").json
    assert found["weights"] == f"layer 1 of {tmp_path.name}, with random router logits"
    assert moe("run", folder / "config.json", *FEW, "--json").json["weights"] == "random"


def test_every_layer_of_a_folder_runs_with_its_own_experts(moe, tmp_path):
    said = {"model_type": "qwen3_moe", "num_hidden_layers": 3, "mlp_only_layers": [1], "dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps({**said, **SIZES}))
    tensors = {
        f"model.layers.{layer}.mlp.{path}": t * layer for layer in (0, 2) for path, t in random_experts().items()
    }
    save_file(tensors, tmp_path / "model.safetensors")
    found = moe("run", tmp_path, *FEW, "--layer", "all", "--json").json
    assert [layer["layer"] for layer in found["layers"]] == [0, 2]
    assert [layer["weights"].split(" of ")[0] for layer in found["layers"]] == ["layer 0", "layer 2"]
    assert found["layers"][0]["relative_error"] == 0, "its experts are zero"
    assert found["layers"][1]["relative_error"] > 0
    assert found["passed"] is True
    text = moe("run", tmp_path, *FEW, "--layer", "1-").out
    assert "layer 2" in text
    assert "layer 0" not in text


@pytest.mark.parametrize(
    ("asked", "message"), [("7-", "names none of the MoE layers 1"), ("x", "found 'x', needed an index")]
)
def test_layers_that_are_not_there_are_bad_input(moe, tmp_path, asked, message):
    said = moe("run", checkpoint(tmp_path, random_experts()), *FEW, "--layer", asked)
    assert said.status == 2
    assert message in said.err


def test_experts_that_are_zero_give_zero(moe, tmp_path):
    """The error would be that of random experts if the layer's own were not used."""
    zeros = {path: torch.zeros_like(t) for path, t in random_experts().items()}
    found = moe("run", checkpoint(tmp_path, zeros), *FEW, "--json").json
    assert found["relative_error"] == 0


def test_quantized_weights_can_be_run_unquantized(moe, tmp_path):
    tensors = {}
    for path, tensor in random_experts().items():
        tensors[path] = tensor.to(torch.float8_e4m3fn)
        tensors[f"{path}_scale_inv"] = torch.ones(1, 1)
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    folder = checkpoint(tmp_path, tensors, quantization_config=quantization)
    assert moe("run", folder, *FEW, "--json").json["report"]["problem"]["quant"] == "FP8_BLOCK_SCALES"
    plain = moe("run", folder, *FEW, "--unquantized", "--json").json
    assert plain["passed"] is True
    assert plain["reduced"] == ["quant FP8_BLOCK_SCALES -> NONE"]


def test_weights_of_another_problem_are_bad_input(moe, tmp_path):
    said = moe("run", checkpoint(tmp_path, random_experts(), moe_intermediate_size=48), *FEW)
    assert said.status == 2
    assert "weights: asked for the experts of layer 1" in said.err
    assert "experts.0.gate_proj.weight: found [32, 64], needed [48, 64]" in said.err


def test_a_folder_whose_weights_are_no_experts_has_random_ones(moe, tmp_path):
    found = moe("run", checkpoint(tmp_path, {"gate.weight": torch.zeros(4, 64)}), *FEW, "--json").json
    assert found["weights"] == "random"
