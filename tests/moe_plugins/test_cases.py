"""Public incidents as a table (tests/data/moe_plugins/cases.toml): a configuration, and what candidates answer."""

import tomllib
from pathlib import Path

import pytest

from moe_core.contract.predicate import show

TABLE = tomllib.loads((Path(__file__).parents[1] / "data" / "moe_plugins" / "cases.toml").read_text())


def changes_of(machine, model, differs):
    return {"packages": TABLE["packages"], **TABLE["machines"][machine], **TABLE["models"][model], **differs}


def answered(eligibility):
    """Everything that the table could say about an answer."""
    padded = {f"{a.kind} {a.found} {a.becomes}" for a in eligibility.adjustments}
    found = {
        f"{r.reason} {str(r.found).lower() if isinstance(r.found, bool) else show(r.found)}"
        for r in eligibility.rejections
    }
    return padded | found or {"taken"}


@pytest.mark.parametrize(
    ("machine", "model", "differs", "group", "expected"), TABLE["cases"].values(), ids=TABLE["cases"]
)
def test_case(machine, model, differs, group, expected, answer):
    for identity in TABLE["groups"][group]:
        assert expected in answered(answer(identity, changes_of(machine, model, differs))), identity


def test_a_missing_version_says_what_is_needed(answer):
    [identity] = TABLE["groups"]["triton_kernels"]
    old = {"quant": "W4A16_MXFP4", "packages": {"triton_kernels": "3.4.0"}}
    [refusal] = answer(identity, changes_of("hopper", "gpt_oss", old)).rejections
    assert (refusal.found, refusal.needed, refusal.fixable_by) == ("3.4.0", ">= 3.5", "install")


def test_a_list_of_widths_is_shown_whole(answer):
    [identity] = TABLE["groups"]["public_low_latency"]
    [refusal] = answer(identity, changes_of("hopper", "gpt_oss", {"ep_size": 8, "dp_size": 8})).rejections
    assert refusal.needed.startswith("2048, 2560, 3072, 4096, 5120, 6144, 7168 or 8192")


def test_marlin_wins_where_only_its_tiles_fit(catalog, setting):
    from moe_core.contract.catalog import Catalog
    from moe_core.contract.request import MoERequest
    from moe_core.resolve import resolve_moe_impl

    names = [*TABLE["groups"]["flashinfer_mxfp4"], *TABLE["groups"]["marlin_mxfp4"], *TABLE["groups"]["no_exchange"]]
    offered = Catalog(entry for entry in catalog if entry.candidate.identity in names)
    differs = {"quant": "W4A16_MXFP4", "intermediate_size": 3072, "tp_size": 16}
    problem, deployment = setting(changes_of("hopper", "deepseek", differs))
    report = resolve_moe_impl(problem, deployment, candidates=offered, request=MoERequest(require_adapter=False))
    assert [report.backend.winner] == TABLE["groups"]["marlin_mxfp4"]
    [(refused, refusal)] = [(c.identity, c.rejections[0]) for c in report.backend.rejected]
    assert [refused] == TABLE["groups"]["flashinfer_mxfp4"]
    assert (refusal.fact, refusal.found, refusal.needed) == ("intermediate_size_per_tp", 192, "a multiple of 128")
