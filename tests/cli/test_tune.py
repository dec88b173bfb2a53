"""``moe tune``, on the processor."""

import json
from pathlib import Path

import pytest
import torch

from moe_core.cli import measuring
from moe_core.contract.evidence import Evidence
from moe_core.registry import Declared, load_registry
from moe_plugins import PLUGINS

FEW = ("--device", "cpu", "--shape", "8,2,64,32", "--tokens", "1,5", "--seconds", "0.001")
LOOP, GROUPED = "moe_core.torch.reference_loop.any", "moe_core.torch.grouped_mm.none"


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_evidence_is_saved_and_shown(moe, tmp_path):
    file = tmp_path / "evidence.json"
    said = moe("tune", *FEW, "--save", file)
    assert said.status == 0
    measured = {(m.identity, m.tokens) for m in Evidence.from_json(file.read_text()).measurements}
    assert {(LOOP, 1), (LOOP, 5), (GROUPED, 1), (GROUPED, 5)} <= measured
    assert "us at tokens per rank" in said.out
    assert "torch.grouped_mm" in said.out


def test_quantized_experts_are_measured(moe, tmp_path):
    file = tmp_path / "evidence.json"
    few = ("--device", "cpu", "--shape", "4,2,64,32,mxfp4", "--tokens", "3", "--seconds", "0.001")
    assert moe("tune", *few, "--save", file).status == 0
    assert {m.identity for m in Evidence.from_json(file.read_text()).measurements} == {LOOP}


def test_explain_takes_the_evidence(moe, tmp_path):
    config = {
        "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_hidden_layers": 1, "hidden_size": 64,
        "intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2, "hidden_act": "silu",
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    file = tmp_path / "evidence.json"
    found = moe("tune", tmp_path, "--tokens", "2", "--seconds", "0.001", "--save", file, "--json").json
    slowest = max(found["measurements"], key=lambda m: m["microseconds"])
    assert slowest["identity"] in (LOOP, GROUPED)
    said = moe("explain", tmp_path, "--evidence", file, "--json")
    (layer,) = said.json["layers"]
    (backend,) = [d for d in layer["report"]["decisions"] if d["kind"] == "backend"]
    times = {row["identity"]: row["microseconds"] for row in backend["eligible"]}
    assert times[slowest["identity"]] == slowest["microseconds"]
    assert not backend["notes"], "every measurement is of this problem and machine"


def test_wrong_answers_are_no_evidence(moe, monkeypatch):
    from moe_core.measure import judge

    monkeypatch.setattr(judge, "relative_error", lambda actual, expected: 0.5)
    said = moe("tune", *FEW)
    assert said.status == 1
    assert f"{LOOP} is wrong at 5 tokens, so its time is no evidence" in said.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--kernels",), "--kernels: found no --table"),
        (("--ep", "2"), "found 1 ranks, needed ep 2 x tp 1; try: torchrun --nproc-per-node 2"),
    ],
)
def test_bad_input(moe, arguments, complaint):
    said = moe("tune", *FEW, *arguments)
    assert said.status == 2
    assert complaint in said.err


@pytest.mark.parametrize("option", ["--save", "--table"])
def test_what_could_not_be_written_is_not_measured(moe, tmp_path, option):
    said = moe(
        "tune", *FEW, "--kernels", "--table", tmp_path / "table.json", option, tmp_path / "absent" / "found.json"
    )
    assert said.status == 2
    assert f"{tmp_path / 'absent'} is no folder that can be written to" in said.err


def test_nothing_to_tune_is_said(moe, tmp_path):
    table = tmp_path / "table.json"
    said = moe("tune", *FEW, "--kernels", "--table", table, "--backend", "VANILLA")
    assert said.status == 1
    assert "no candidate here can be tuned" in said.err
    assert not table.exists()


def test_a_backend_writes_its_own_table(moe, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "measure" / "plugins"))
    from measured_examples.declared import candidate

    plugins = [*PLUGINS, Declared(candidate("Adjustable"))]
    monkeypatch.setattr(measuring, "load_registry", lambda bans: load_registry(bans, plugins=plugins, points=()))
    table = tmp_path / "table.json"
    table.write_text('{"7": ["slower", 0]}')
    said = moe("tune", *FEW, "--kernels", "--table", table, "--backend", "EXAMPLE")
    assert said.status == 0
    assert json.loads(table.read_text()) == {"7": ["slower", 0], "1": ["quick", 1], "5": ["quick", 1]}
    assert [(row["tokens"], row["config"]) for row in said.json] == [(1, {"name": "quick"}), (5, {"name": "quick"})]
    assert all(row["microseconds"] < row["default_microseconds"] for row in said.json)
