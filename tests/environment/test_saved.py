"""Environments as files, and the words that name one."""

import json

import pytest

from moe_core.environment import assume, current, load, override, preset, probe, resolve_environment, save


def test_saved_and_loaded_is_equal(tmp_path, bare):
    rich = assume(probe(plugin_facts=[("hello", {"hello.rate": 1.0, "hello.on": True})]), ["flag:A=ü", "vllm==0.33"])
    for environment in (rich, preset("gb200"), preset("cpu")):
        save(environment, tmp_path / "there.json")
        assert load(tmp_path / "there.json") == environment
        assert load(str(tmp_path / "there.json")).fingerprint == environment.fingerprint


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("not json", ["Invalid JSON"]),
        ("[1]", ["object"]),
        ('{"sm": "ninety", "smm": 90, "link": "usb"}', ["sm: ", "smm: ", "link: "]),
        ('{"schema_version": 2}', ["schema_version: "]),
        ('{"device": "cuda", "sm": 0}', ["device is cuda, but sm is 0"]),
        ('{"packages": [{"name": "torch"}]}', ["packages.0.version: "]),
    ],
)
def test_a_wrong_file_says_everything_that_is_wrong(tmp_path, text, says):
    path = tmp_path / "there.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="is no saved environment") as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert all(part in str(caught.value) for part in says)
    assert "pydantic.dev" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match=r"missing\.json: No such file"):
        load(tmp_path / "missing.json")
    with pytest.raises(ValueError, match="Is a directory"):
        load(tmp_path)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not UTF-8 text"):
        load(tmp_path / "binary.json")


def test_words_name_this_machine_a_preset_or_a_file(tmp_path, monkeypatch):
    with override(preset("h20")):
        assert resolve_environment("this") is current()
    assert resolve_environment("GB200") == preset("gb200")
    save(preset("b300"), tmp_path / "node7")
    assert resolve_environment(str(tmp_path / "node7")) == preset("b300")
    monkeypatch.chdir(tmp_path)
    save(preset("b300"), "h200")
    assert resolve_environment("h200") == preset("h200"), "a preset's name is not a file's"


def test_a_word_that_names_nothing(tmp_path):
    with pytest.raises(ValueError, match="'h2000' names no machine") as caught:
        resolve_environment("h2000")
    assert "did you mean" in str(caught.value)
    with pytest.raises(ValueError, match="No such file"):
        resolve_environment(str(tmp_path / "nowhere.json"))


def test_the_file_is_plain_json(tmp_path):
    save(preset("h200"), tmp_path / "h200.json")
    assert json.loads((tmp_path / "h200.json").read_text())["num_sms"] == 132
