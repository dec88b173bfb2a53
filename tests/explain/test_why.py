"""What would make a candidate eligible."""

import pytest

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.vocabulary import CandidateKind
from moe_core.environment import preset
from moe_core.explain.as_text import as_text
from moe_core.explain.why import UnknownCandidateError, Verdict, find_candidate, why
from moe_core.explain.why_view import why_document
from moe_core.registry import load_catalog
from moe_core.resolve import resolve_moe_impl


def verdicts(answer):
    return {(f.fact, f.verdict) for f in answer.findings}


def test_a_failed_requirement_has_hint_and_legal_sizes(resolved, catalog):
    answer = why(catalog.get("delta.triton.grouped.fp8_block_scales"), resolved(tp_size=8))
    [failed] = answer.of(Verdict.FAILED)
    assert (failed.fact, failed.found, failed.needed) == ("intermediate_size_per_tp", 96, "a multiple of 128")
    assert failed.hint == "use a smaller tp_size, or EP"
    assert failed.neighbours == ("tp_size 2, 3 or 6", "ep_size 8 instead of tensor parallelism")
    assert answer.outcome == f"refused: 1 of {len(answer.findings)} requirements failed"


def test_unknown_passed_and_exempt_are_told_apart(resolved, catalog, hopper):
    nameless = hopper.evolve(sm=None, device=None)
    answer = why(catalog.get("beta.cuda.grouped.fp8_block_scales"), resolved(environment=nameless, ep_size=8))
    assert ("sm", Verdict.UNKNOWN) in verdicts(answer)
    assert ("quant", Verdict.PASSED) in verdicts(answer)
    padded = why(catalog.get("delta.triton.padded.fp8_block_scales"), resolved(ep_size=8, batch_invariant=True))
    assert ("batch_invariant", Verdict.EXEMPT) in verdicts(padded)


@pytest.mark.parametrize(
    ("identity", "fields", "outcome"),
    [
        ("delta.triton.grouped.fp8_block_scales", {}, "won"),
        ("omega.torch.loop.any", {}, "eligible, place 3 of 3"),
        ("alpha.cuda.fused.nvfp4", {"upstream": True}, "not asked: the request leaves it out"),
    ],
)
def test_outcome(identity, fields, outcome, resolved, catalog):
    assert why(catalog.get(identity), resolved(**fields)).outcome == outcome


def test_bans_and_missing_adapters_are_findings(resolved, catalog):
    answer = why(catalog.get("gamma.cuda.grouped.fp8_block_scales"), resolved(bans=("GAMMA",)))
    assert [f.reason.name for f in answer.of(Verdict.FAILED)] == ["BANNED", "PATH_NOT_ENABLED"]


@pytest.mark.parametrize("hardware", ["cpu", "h200", "b200", "rtx-pro-6000"])
def test_findings_fail_exactly_where_the_report_refuses(hardware, fp8_problem):
    catalog = load_catalog()
    deployment = MoEDeployment(environment=preset(hardware), ep_size=3, tp_size=2, dp_size=3)
    report = resolve_moe_impl(fp8_problem, deployment, candidates=catalog)
    for kind in CandidateKind:
        for refused in (c for d in report.decisions if d.kind is kind for c in d.rejected):
            failed = why(catalog.get(refused.identity), report).of(Verdict.FAILED)
            expected = {(r.reason, r.fact, r.needed) for r in refused.rejections}
            assert {(f.reason, f.fact, f.needed) for f in failed} == expected, refused.identity


def test_candidates_are_found_by_part(catalog):
    assert find_candidate("BETA", catalog).identity == "beta.cuda.grouped.fp8_block_scales"
    assert find_candidate("fused.nvfp4", catalog).identity == "alpha.cuda.fused.nvfp4"
    assert find_candidate("ALPHA.cuda.fused.NVFP4", catalog).identity == "alpha.cuda.fused.nvfp4"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ALPHA", "'ALPHA' names 3 candidates: alpha.cuda.fused.fp8_block_scales, alpha.cuda.fused.nvfp4,"),
        ("omega.torch.lop.any", "did you mean omega.torch.loop.any"),
        ("qqqq", "`moe candidates` lists them"),
        ("", "names no candidate"),
    ],
)
def test_what_names_no_single_candidate_is_an_error_with_advice(text, message, catalog):
    with pytest.raises(UnknownCandidateError) as caught:
        find_candidate(text, catalog)
    assert message in str(caught.value)


def test_page_equals_golden_file(resolved, catalog, assert_golden):
    candidate = catalog.get("delta.triton.grouped.fp8_block_scales")
    document = why_document([("layers 3-60", why(candidate, resolved(tp_size=8)))])
    assert_golden("why.txt", as_text(document))


def test_equal_answers_are_one_and_different_ones_have_their_layers(resolved, catalog):
    candidate = catalog.get("delta.triton.grouped.fp8_block_scales")
    good, bad = why(candidate, resolved(ep_size=8)), why(candidate, resolved(tp_size=8))
    assert as_text(why_document([("layers 0", good), ("layers 1", good)])).count("why ") == 1
    text = as_text(why_document([("layers 0", good), ("layers 1", bad)]))
    assert "for      layers 0\n" in text
    assert "for      layers 1\n" in text
