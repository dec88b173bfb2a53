"""``moe bench``, on the processor."""

import json

import pytest
import torch

from moe_core.measure.results import Bench

FEW = ("--device", "cpu", "--shape", "8,2,64,32", "--tokens", "1,5", "--seconds", "0.001")
LOOP = "moe_core.torch.reference_loop.any"


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_candidates_stand_side_by_side(moe):
    said = moe("bench", *FEW)
    assert said.status == 0
    assert "8-2-64-32, 5 tokens: floor " in said.out
    assert "experts alone" in said.out
    assert "torch.grouped_mm peer" in said.out
    assert "torch.select_experts + " in said.out


def test_saved_results_are_those_printed(moe, tmp_path):
    file = tmp_path / "bench.json"
    said = moe("bench", *FEW, "--routing", "zipf", "--seed", "3", "--save", file, "--json")
    bench = Bench.from_json(file.read_text())
    assert bench == Bench.model_validate(said.json)
    assert [cell.tokens for cell in bench.cells] == [1, 5]
    assert (bench.routing, bench.seed) == ("zipf", 3)
    assert bench.environment.package_version("torch") is not None
    assert not list(tmp_path.glob("*.part"))


def test_each_cell_is_saved_as_it_is_done(moe, tmp_path, monkeypatch):
    from moe_core.measure import bench

    file, whole = tmp_path / "bench.json", bench.measure_shape

    def killed(*arguments):
        yield next(whole(*arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "measure_shape", killed)
    with pytest.raises(KeyboardInterrupt):
        moe("bench", *FEW, "--save", file)
    assert [cell.tokens for cell in Bench.from_json(file.read_text()).cells] == [1]


def test_a_wrong_answer_is_refused_a_ratio(moe, monkeypatch):
    from moe_core.measure import judge

    monkeypatch.setattr(judge, "relative_error", lambda actual, expected: 0.5)
    said = moe("bench", *FEW)
    assert said.status == 1
    assert "x\n" not in said.out, "there is no ratio"
    assert "wrong" in said.out
    assert f"{LOOP} is wrong, so there is no ratio: error 0.5, tolerance 0.008" in said.err


def test_a_config_is_measured_by_layer(moe, tmp_path):
    config = {
        "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64,
        "moe_intermediate_size": 32, "intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2,
        "hidden_act": "silu", "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = moe("bench", tmp_path, "--device", "cpu", "--tokens", "2", "--seconds", "0.001", "--json").json
    (shape,) = found["shapes"]
    assert shape["problem"]["num_experts"] == 8
    assert {cell["shape"] for cell in found["cells"]} == {shape["name"]}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "found neither CONFIG nor --shape"),
        (("--shape", "8,2"), "needed E,K,H,I"),
        (("--shape", "8,2,64,32", "--tokens", "0"), "needed counts above 0"),
        (("--shape", "8,2,65,33,mxfp4", "--device", "cpu"), "found widths 65 and 33, needed even ones"),
        (("--shape", "8,2,64,32", "--rest", "-1"), "found '-1', needed seconds"),
        (("--shape", "8,2,64,32", "--seconds", "nan"), "found 'nan', needed seconds"),
    ],
)
def test_bad_input(moe, arguments, complaint):
    said = moe("bench", *arguments)
    assert said.status == 2
    assert complaint in said.err


@pytest.mark.parametrize("name", ["fp8_block", "fp8", "mxfp4", "nvfp4", "awq", "int4_g32", "int8"])
def test_quantized_experts_are_measured(moe, name):
    said = moe("bench", "--device", "cpu", "--shape", f"4,2,64,32,{name}", "--tokens", "3", "--seconds", "0.001")
    assert said.status == 0
    assert f"4-2-64-32-{name}, 3 tokens: floor " in said.out
    assert "torch.reference_loop" in said.out


def test_a_config_is_measured_in_its_format(moe, tmp_path):
    config = {
        "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 1, "hidden_size": 64,
        "moe_intermediate_size": 32, "intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2,
        "hidden_act": "silu", "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
                                "activation_scheme": "dynamic"},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    arguments = ("bench", tmp_path, "--device", "cpu", "--tokens", "2", "--seconds", "0.001", "--json")
    quants = [moe(*arguments, *more).json["shapes"][0]["problem"]["quant"] for more in ((), ("--unquantized",))]
    assert quants == ["FP8_BLOCK_SCALES", "NONE"]
