"""``moe candidates``, ``moe environment`` and ``moe doctor``."""

import pytest

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.environment import MoEEnvironment
from moe_core.environment import preset
from moe_core.explain.matrix import support_matrix
from moe_core.registry import load_catalog, loader


class Point:
    """An entry point of a stranger's distribution."""

    name = "shaky"

    class dist:
        name = "shaky-dist"

    def load(self):
        raise ImportError("no module named kernels")


@pytest.fixture
def _shaky_plugin(monkeypatch):
    installed = list(loader.entry_points(group="moe_core"))
    monkeypatch.setattr(loader, "entry_points", lambda group: [*installed, Point()])


def test_candidates_lists_everybody(moe):
    said = moe("candidates")
    assert said.status == 0
    assert [c.identity for c in load_catalog().candidates if f"  {c.identity}\n" not in said.out] == []
    assert max(map(len, said.out.splitlines())) <= 80


def test_candidates_as_json_are_the_declarations(moe):
    found = moe("candidates", "--json").json
    catalog = load_catalog()
    assert found["catalog"] == catalog.fingerprint
    assert tuple(MoECandidate.model_validate(row["candidate"]) for row in found["candidates"]) == catalog.candidates


def test_candidates_as_markdown_are_the_support_matrix(moe):
    assert moe("candidates", "--markdown").out == support_matrix(load_catalog())


def test_environment_of_a_preset(moe):
    said = moe("environment", "--hardware", "h200")
    assert said.status == 0
    assert "sm       90\n" in said.out
    assert "torch 2.11.0" in said.out
    assert MoEEnvironment.from_json(moe("environment", "--hardware", "h200", "--json").out) == preset("h200")


def test_environment_of_this_machine(moe):
    found = MoEEnvironment.from_json(moe("environment", "--json").out)
    assert found.package_version("torch")


def test_environment_looks_deeper_when_asked(moe):
    found = MoEEnvironment.from_json(moe("environment", "--deep", "--json").out)
    assert {feature.name for feature in found.features} >= {"torch.grouped_mm"}


def test_doctor_is_content(moe):
    said = moe("doctor")
    assert said.status == 0
    assert said.out.startswith("doctor   healthy\n")
    assert "  moe-core: " in said.out


@pytest.mark.usefixtures("_shaky_plugin")
def test_doctor_names_refused_plugins(moe):
    said = moe("doctor")
    assert said.status == 1
    assert "refused\n  shaky of shaky-dist: ImportError: no module named kernels\n" in said.out
    assert moe("doctor", "--json").json["refused"][0]["plugin"] == "shaky"


@pytest.mark.usefixtures("_shaky_plugin")
def test_a_banned_plugin_is_no_illness(moe):
    said = moe("doctor", "--ban", "shaky-dist")
    assert said.status == 0
    assert "bans in force\n  shaky-dist: shaky\n" in said.out


def test_doctor_names_bans_that_hit_nothing(moe, monkeypatch):
    monkeypatch.setenv("MOE_CORE_BAN", "VANILLA,nobody")
    said = moe("doctor")
    assert said.status == 1
    assert "  nobody: matches no candidate\n" in said.out
    assert "moe_core.torch.reference_loop.any" in said.out


def test_doctor_names_misspelt_variables_and_explains_set_ones(moe, monkeypatch):
    monkeypatch.setenv("MOE_CORE_BANN", "x")
    monkeypatch.setenv("TRTLLM_CAN_USE_DEEP_EP", "0")
    said = moe("doctor")
    assert said.status == 1
    text = " ".join(said.out.split())
    assert "environment variable MOE_CORE_BANN is not read" in text
    assert "TRTLLM_CAN_USE_DEEP_EP=0 0 takes DeepEP out" in text
    assert said.err == ""
