"""What went wrong for people who run MoE models, and what this library answers: a table of cases as data.

Expectations are on reasons, not on who has an adapter: candidates that nobody can run yet are asked as well.
"""

import json
from pathlib import Path

import pytest

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.problem import MoEProblem
from moe_core.contract.reasons import MoERejectReason
from moe_core.contract.request import MoERequest
from moe_core.environment import assume, preset
from moe_core.ingest import ingest
from moe_core.registry import load_catalog
from moe_core.resolve import legal_neighbours, resolve_moe_impl

DATA = Path(__file__).parents[1] / "data"
CASES = json.loads((DATA / "cases" / "selection.json").read_text())


@pytest.fixture(scope="module")
def catalog():
    return load_catalog()


def problem_of(case):
    if "config" in case:
        return ingest(DATA / "configs" / case["config"]).groups[0].problem
    return MoEProblem.model_validate(case["problem"])


def resolve(case, catalog, **request):
    environment = assume(preset(case["hardware"]), case.get("assume", []))
    deployment = MoEDeployment.model_validate({"environment": environment, **case["deployment"]})
    asked = MoERequest.model_validate({**case.get("request", {}), **request})
    return resolve_moe_impl(problem_of(case), deployment, candidates=catalog, request=asked)


def rejections(report, identity):
    return [r for d in report.decisions for r in d.rejections_of(identity)]


@pytest.mark.parametrize("case", CASES, ids=[f"{c['case']} {c['title']}" for c in CASES])
def test_case(case, catalog):
    report = resolve(case, catalog, require_adapter=False)
    expect = case["expect"]
    for identity, wanted in expect.get("rejected", {}).items():
        assert_rejected(report, identity, wanted)
    eligible = {c.identity for d in report.decisions for c in d.eligible}
    assert set(expect.get("eligible", [])) <= eligible
    for identity, (found, becomes) in expect.get("adjusted", {}).items():
        [row] = [c for c in report.backend.eligible if c.identity == identity]
        assert (found, becomes) in [(a.found, a.becomes) for a in row.adjustments]
    for field, value in expect.get("problem", {}).items():
        assert getattr(report.problem, field) == value
    if "invalid" in expect:
        assert [r.fact for r in report.invalid] == expect["invalid"]
        assert {r.reason for r in report.invalid} == {MoERejectReason.INVALID_CONFIG}
    if "selected_family" in expect:
        assert report.communication.winning.family == expect["selected_family"]
    if expect.get("failed"):
        assert not report.ok
        assert all(c.rejections for d in report.decisions for c in d.rejected)
    if expect.get("runs"):
        assert resolve(case, catalog).ok


def assert_rejected(report, identity, wanted):
    found = rejections(report, identity)
    matching = [r for r in found if r.reason.name == wanted["reason"] and r.fact == wanted.get("fact", r.fact)]
    assert matching, f"{identity} was rejected for {[(r.reason.name, r.fact, r.found) for r in found]}"
    rejection = matching[0]
    for part in ("found", "needed"):
        if part in wanted:
            assert getattr(rejection, part) == wanted[part]
    if "neighbours" in wanted:
        text = "; ".join(legal_neighbours(rejection, report.problem, report.deployment))
        for neighbour in wanted["neighbours"]:
            assert neighbour in text


def test_a_pin_that_nobody_knows_is_an_error_with_what_there_is(catalog):
    case = next(c for c in CASES if c["case"] == 36)
    with pytest.raises(ValueError, match="names no registered family"):
        resolve(case, catalog, backend="MXFP4_KERNELS")
