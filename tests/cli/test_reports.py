"""``moe diff`` and ``moe agree``."""

import pytest

from moe_core.contract.model_report import MoEModelReport


@pytest.fixture
def saved(moe, qwen, tmp_path):
    def save(name, *options):
        path = tmp_path / name
        moe("explain", qwen, "--hardware", "h200", "--ep", "4", "--dp", "4", *options, "--save", path)
        return path

    return save


def test_equal_reports_are_status_0(moe, saved):
    said = moe("diff", saved("a"), saved("b"))
    assert said.status == 0
    assert said.out.split()[0] == "equal:"
    assert moe("diff", saved("a"), saved("b"), "--json").json == []


def test_different_reports_are_status_1(moe, saved):
    reports = saved("a"), saved("b", "--max-dispatch-tokens", "64")
    said = moe("diff", *reports, "--json")
    assert said.status == 1
    assert said.json == [{"path": "deployment.max_dispatch_tokens", "left": "unknown", "right": "64"}]
    assert (
        "deployment.max_dispatch_tokens\n  - unknown\n  + 64\n"
        in moe("diff", saved("a"), saved("b", "--max-dispatch-tokens", "64")).out
    )


def test_a_report_of_a_single_layer_is_read(moe, saved, tmp_path):
    whole = saved("a")
    single = tmp_path / "single"
    single.write_text(MoEModelReport.from_json(whole.read_text()).layers[0].report.to_json())
    assert moe("diff", whole, single).status == 0


def test_ranks_that_agree_are_status_0(moe, saved):
    said = moe("agree", saved("r0"), saved("r1"), saved("r2"))
    assert (said.status, said.out) == (0, "equal: 3 ranks agree\n")


def test_ranks_that_disagree_are_named(moe, saved):
    ranks = [saved("r0"), saved("r1", "--max-dispatch-tokens", "64"), saved("r2")]
    said = moe("agree", *ranks)
    assert said.status == 1
    assert "RANK_DISAGREEMENT deployment.max_dispatch_tokens\n  unknown on ranks 0, 2\n  64 on rank 1\n" in said.out
    [found] = moe("agree", *ranks, "--json").json
    assert found["reason"] == "rank_disagreement"
    assert found["values"] == [{"value": "unknown", "ranks": [0, 2]}, {"value": "64", "ranks": [1]}]


def test_a_damaged_report_says_where(moe, saved, tmp_path):
    damaged = tmp_path / "damaged"
    damaged.write_text(saved("a").read_text().replace('"ep_size": 4', '"ep_size": "four"', 1))
    said = moe("diff", saved("b"), damaged)
    assert said.status == 2
    assert "layers.0.report.deployment.ep_size: Input should be a valid integer" in said.err
