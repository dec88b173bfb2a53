"""What went wrong for people who run MoE models, and what this library answers: a table of cases as data.

Expectations are on reasons, not on who has an adapter: candidates that nobody can run yet are asked as well.
"""

import json
from pathlib import Path

import pytest

from moe_core.contract.candidate import AdjustmentRule, MoEActivationSupport, MoECandidate
from moe_core.contract.declare import AtLeast, Reason, divisible, need
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
    for identity, reason in expect.get("without", {}).items():
        assert reason not in [r.reason.name for r in rejections(report, identity)]
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
    if "found" in wanted:
        found = rejection.found
        assert (list(found) if isinstance(found, tuple) else found) == wanted["found"]
    if "needed" in wanted:
        assert rejection.needed == wanted["needed"]
    assert wanted.get("hint", "") in rejection.hint
    if "neighbours" in wanted:
        text = "; ".join(legal_neighbours(rejection, report.problem, report.deployment))
        for neighbour in wanted["neighbours"]:
            assert neighbour in text


def test_a_pin_that_nobody_knows_is_an_error_with_what_there_is(catalog):
    case = next(c for c in CASES if c["case"] == 36)
    with pytest.raises(ValueError, match="names no registered family"):
        resolve(case, catalog, backend="MXFP4_KERNELS")


# Kernels that differ only in how they take a shard narrower than their scale block (case 5), or in shared memory (35).


def kernel(name, *gates, adjustments=(), priority=0):
    return MoECandidate(
        kind="backend", identity=f"acme.{name}.grouped.fp8_block_scales", family="ACME", title=name, priority=priority,
        factory="acme.kernels:build", activation=MoEActivationSupport(kinds=("Swiglu",)), requirements=gates,
        adjustments=adjustments,
    )  # fmt: skip


NO_EXCHANGE = MoECandidate(
    kind="communication", identity="acme.local.nothing.any", family="NONE", title="-", factory="acme.kernels:none"
)
SHARD = "intermediate_size_per_tp"


@pytest.mark.parametrize(("intermediate", "padded"), [(1536, 256), (512, 128)], ids=["192", "64"])
def test_case_5_a_shard_narrower_than_a_block_is_a_matter_of_each_kernel(intermediate, padded):
    kernels = (
        kernel("pads", adjustments=(AdjustmentRule(fact=SHARD, multiple=128),)),
        kernel("cuts", adjustments=(AdjustmentRule(kind="sub_block", fact=SHARD, multiple=128),)),
        kernel("refuses", divisible(SHARD, 128)),
    )
    problem = MoEProblem(
        quant="FP8_BLOCK_SCALES", hidden_size=3072, intermediate_size=intermediate, num_experts=256, top_k=8, bias=False
    )
    report = resolve_moe_impl(problem, MoEDeployment(tp_size=8), candidates=(*kernels, NO_EXCHANGE))
    shard = intermediate // 8
    taken = {
        c.identity.split(".")[1]: [(a.kind, a.found, a.becomes) for a in c.adjustments] for c in report.backend.eligible
    }
    assert taken == {"pads": [("pad", shard, padded)], "cuts": [("sub_block", shard, shard)]}
    [rejection] = report.backend.rejections_of("acme.refuses.grouped.fp8_block_scales")
    assert (rejection.reason.name, rejection.found) == ("SHAPE_UNALIGNED", shard)
    whole = resolve_moe_impl(problem, MoEDeployment(ep_size=8), candidates=(*kernels, NO_EXCHANGE))
    assert len(whole.backend.eligible) == 3


def test_case_35_shared_memory_is_a_declared_limit():
    four_stages = (4 - 1) * (128 + 256) * 128
    gate = need(Reason.RESOURCE_EXCEEDED, "shared_memory_per_block", AtLeast(value=four_stages), "use 2 stages")
    problem = MoEProblem(quant="FP8_BLOCK_SCALES", hidden_size=2816, intermediate_size=704, num_experts=128, top_k=8)
    for hardware, refused in (("dgx-spark", True), ("h200", False)):
        deployment = MoEDeployment(environment=preset(hardware))
        candidates = (kernel("deep", gate, priority=2), kernel("shallow", priority=1), NO_EXCHANGE)
        report = resolve_moe_impl(problem, deployment, candidates=candidates)
        assert report.backend.winner.split(".")[1] == ("shallow" if refused else "deep")
        found = [(r.reason.name, r.found, r.needed) for r in report.backend.rejections_of(candidates[0].identity)]
        assert found == ([("RESOURCE_EXCEEDED", 101376, "at least 147,456")] if refused else [])
