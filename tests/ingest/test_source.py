"""From a path, a mapping or an in-memory config to plain mappings."""

import json
from types import SimpleNamespace

import pytest

from moe_core.ingest import IngestError, ingest
from moe_core.ingest.source import load

CONFIG = {
    "model_type": "mixtral",
    "num_hidden_layers": 2,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
}
QUANT = {"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}}


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "My-Mixtral"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


def test_every_kind_of_source_gives_the_same_groups(folder):
    in_memory = SimpleNamespace(to_dict=lambda: CONFIG)
    sources = (folder, str(folder), folder / "config.json", CONFIG, in_memory)
    assert len({ingest(source).groups for source in sources}) == 1


@pytest.mark.parametrize("of", [lambda f: f, lambda f: f / "config.json"], ids=["folder", "file"])
def test_the_quantization_file_beside_a_config_is_read(folder, of):
    (folder / "hf_quant_config.json").write_text(json.dumps(QUANT))
    assert ingest(of(folder)).groups[0].problem.quant == "NVFP4"


def test_names(folder, tmp_path):
    other = tmp_path / "tiny.json"
    other.write_text(json.dumps(CONFIG))
    assert load(folder).name == "My-Mixtral"
    assert load(folder / "config.json").name == "My-Mixtral"
    assert load(other).name == "tiny"
    assert load(CONFIG).name == "mixtral"
    assert load(CONFIG | {"_name_or_path": "mistralai/Mixtral-8x7B-v0.1"}).name == "Mixtral-8x7B-v0.1"
    assert load({}).name == "config"


def test_a_relative_path_has_the_name_of_its_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert load(".").name == "My-Mixtral"
    assert load("config.json").name == "My-Mixtral"


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ("no/such/file.json", "no such file or folder; needed a config.json, or a folder that holds one"),
        ("Qwen/Qwen3-30B-A3B", "download its config.json and give the local path"),
        ('{"model_type": "mixtral"}', "found JSON text"),
        ("x" * 5000, "no such file or folder"),
    ],
)
def test_a_string_that_is_no_path(asked, text):
    with pytest.raises(IngestError) as caught:
        ingest(asked)
    assert text in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_folder_without_a_config(tmp_path):
    with pytest.raises(IngestError, match=r"a folder without config\.json"):
        ingest(tmp_path)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"{'model_type': 1}", "config.json is not JSON (Expecting property name"),
        (b'{"model_type": "mixtral",', "at line 1, column"),
        (b"", "config.json is not JSON"),
        (b"[1, 2]", "config.json holds a JSON list; needed a JSON object"),
        (b"\xff\xfe\x00", "config.json cannot be read"),
    ],
)
def test_a_file_that_is_no_config(folder, content, text):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(IngestError) as caught:
        ingest(folder)
    assert text in str(caught.value)


def test_both_files_are_complained_about(folder):
    (folder / "config.json").write_text("{")
    (folder / "hf_quant_config.json").write_text("[]")
    with pytest.raises(IngestError) as caught:
        ingest(folder)
    assert [trouble.found.split()[0] for trouble in caught.value.troubles] == ["config.json", "hf_quant_config.json"]


def test_an_object_that_is_no_source():
    with pytest.raises(IngestError, match="an object of type int"):
        ingest(3)
