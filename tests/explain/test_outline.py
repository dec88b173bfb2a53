"""What an explanation says, and in which order."""

import re

import pytest

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.catalog import Catalog
from moe_core.contract.decision import PluginError
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.evidence import Evidence, Measurement
from moe_core.contract.model_report import LayerReport, MoEModelReport
from moe_core.contract.request import MoERequest
from moe_core.contract.vocabulary import LayerRole
from moe_core.environment import preset
from moe_core.explain import Context, explain
from moe_core.explain.as_text import as_text
from moe_core.ingest import ingest
from moe_core.registry import load_catalog
from moe_core.resolve import resolve_model, resolve_moe_impl

GOLDEN_QUESTIONS = {
    "winner": {"ep_size": 8, "dp_size": 8, "max_num_tokens": 4096},
    "padded": {"tp_size": 8},
    "fallback": {"tp_size": 8, "backend": "ALPHA", "communication": "ONE_SIDED"},
    "failed-strict": {"ep_size": 8, "dp_size": 8, "backend": "ALPHA", "allow_degradation": False},
    "failed-everything": {
        "ep_size": 3,
        "bans": ("VANILLA", "nobody"),
        "batch_invariant": True,
        "moe_lora_enabled": True,
    },
    "contradiction": {"ep_size": 8, "dp_size": 3},
}


def test_a_model_that_routes_by_itself_is_told_so(resolved, fp8_problem, catalog):
    router = MoECandidate(
        identity="omega.torch.router.any", kind="routing", family="ROUTER", title="a router", factory="somewhere:make"
    )
    text = as_text(
        explain(
            resolved(fp8_problem.evolve(routing="Unspecified"), candidates=Catalog.of((*catalog.candidates, router)))
        )
    )
    assert re.search(r"routing +by the model itself: no kernel is needed", text)


@pytest.mark.parametrize("name", GOLDEN_QUESTIONS)
def test_text_equals_golden_file(name, resolved, assert_golden):
    assert_golden(f"explain-{name}.txt", as_text(explain(resolved(**GOLDEN_QUESTIONS[name]))))


def test_all_equals_golden_file(resolved, assert_golden):
    report = resolved(ep_size=8, dp_size=8)
    assert_golden("explain-all.txt", as_text(explain(report, everything=True)))


def test_a_model_of_upstream_rows_equals_golden_file(pytestconfig, assert_golden):
    source = ingest(pytestconfig.rootpath / "tests" / "data" / "configs" / "deepseek-ai__DeepSeek-V3")
    deployment = MoEDeployment(environment=preset("b200"), ep_size=8, dp_size=8, max_num_tokens=4096)
    request = MoERequest(upstream=True, token_buckets=(64, 4096))
    model = resolve_model(source.groups, deployment, candidates=load_catalog(), request=request, model=source.name)
    assert_golden("explain-model.txt", as_text(explain(model, context=Context(source=source))))


@pytest.mark.parametrize("question", GOLDEN_QUESTIONS.values(), ids=GOLDEN_QUESTIONS)
def test_everything_names_every_candidate_and_every_reason(question, resolved, catalog):
    report = resolved(**question)
    # Where a line is broken is of no concern here.
    text = re.sub(r"\s+", " ", as_text(explain(report, everything=True)))
    assert [c.identity for c in catalog.candidates if c.identity not in text] == []
    reasons = [r for d in report.decisions for c in d.rejected for r in c.rejections]
    assert [r for r in reasons if f"{r.reason.name} {r.fact}: found" not in text] == []


def test_everything_names_every_candidate_of_the_installed_catalog(fp8_problem):
    catalog = load_catalog()
    report = resolve_moe_impl(fp8_problem, MoEDeployment(environment=preset("h200")), candidates=catalog)
    text = as_text(explain(report, everything=True))
    assert [c.identity for c in catalog.candidates if c.identity not in text] == []


def test_the_short_form_names_everybody_too(resolved, catalog):
    text = as_text(explain(resolved(ep_size=8, dp_size=8)))
    assert [c.identity for c in catalog.candidates if c.identity not in text] == []
    assert "alpha.cuda.fused.nvfp4 (+3 more reasons)" in text
    assert "would be eligible if an adapter were installed\n    gamma.cuda.grouped.fp8_block_scales" in text


def test_the_first_line_is_the_winner_and_why(resolved):
    first = as_text(explain(resolved(ep_size=8)), width=200).splitlines()[0]
    assert first == "winner   delta.triton.grouped.fp8_block_scales: priority 50, best of 3 eligible"


def test_the_first_line_of_a_failure_says_why(resolved):
    first = as_text(explain(resolved(backend="ALPHA", allow_degradation=False)), width=200).splitlines()[0]
    expected = "ALPHA (asked by argument) cannot run, and stepping down is not allowed; 3 other candidates could"
    assert first == f"failed   {expected}"


def test_who_has_no_winner_gets_every_reason_unasked(resolved):
    report = resolved(backend="ALPHA", allow_degradation=False)
    refused = [s for s in explain(report).sections if "refused" in s.title]
    assert refused == [s for s in explain(report, everything=True).sections if "refused" in s.title]


def test_measured_winner_says_how_fast(catalog, hopper, fp8_problem):
    deployment = MoEDeployment(environment=hopper)
    measured = [("delta.triton.padded.fp8_block_scales", 12.34), ("delta.triton.grouped.fp8_block_scales", 1500.0)]
    evidence = Evidence(
        measurements=tuple(
            Measurement(
                identity=identity, problem=fp8_problem.fingerprint, environment=hopper.fingerprint,
                tokens=64, microseconds=us,
            )
            for identity, us in measured
        )
    )  # fmt: skip
    report = resolve_moe_impl(fp8_problem, deployment, candidates=catalog, evidence=evidence)
    text = as_text(explain(report), width=200)
    assert "delta.triton.padded.fp8_block_scales: fastest of 2 measured, 12.3 us" in text.splitlines()[0]
    assert "delta.triton.grouped.fp8_block_scales  priority 50, measured 1.5 ms" in text


def test_tunings_equal_golden_file(resolved, tuned_catalog, assert_golden):
    report = resolved(candidates=tuned_catalog, token_buckets=(1, 64, 4096))
    assert_golden("explain-tuned.txt", as_text(explain(report)))


def test_who_is_refused_is_told_once_for_buckets_that_differ_in_time(resolved, tuned_catalog):
    report = resolved(candidates=tuned_catalog, token_buckets=(1, 64, 4096))
    titles = [s.title for s in explain(report).sections]
    assert [t for t in titles if t.startswith("backends refused")] == ["backends refused (5)"]
    assert len([t for t in titles if t.startswith("backends also eligible")]) == 3


def test_equal_reports_of_target_and_draft_are_one_answer(resolved):
    report = resolved(ep_size=8)
    layers = (
        LayerReport(role=LayerRole.TARGET, layers=(3, 4, 5), report=report),
        LayerReport(role=LayerRole.DRAFT, layers=(6,), report=report),
    )
    text = as_text(explain(MoEModelReport(model="m", layers=layers, weight_bytes=None)))
    assert "for      layers 3-5 and draft 6\n" in text
    assert text.count("winner ") == 1


def test_different_answers_stand_first_and_apart(resolved, fp8_problem):
    wide = resolved(fp8_problem.evolve(intermediate_size=1024), tp_size=8)
    narrow = resolved(tp_size=8)
    layers = (
        LayerReport(role=LayerRole.TARGET, layers=(0, 2), report=wide),
        LayerReport(role=LayerRole.TARGET, layers=(1,), report=narrow),
    )
    lines = as_text(explain(MoEModelReport(layers=layers, weight_bytes=None))).splitlines()
    winners = [line for line in lines if line.startswith("winner")]
    assert len(winners) == 2
    assert any("refused" in line and line.endswith("for layers 0, 2") for line in lines)
    assert any("refused" in line and line.endswith("for layers 1") for line in lines)
    assert lines.index(winners[1]) < next(i for i, line in enumerate(lines) if "refused" in line)


def test_token_buckets_with_one_answer_are_one_range(resolved):
    text = as_text(explain(resolved(ep_size=8, token_buckets=(64, 4096))))
    assert "for      up to 4096 tokens\n" in text


def test_broken_plugins_and_notes_are_shown(fp8_problem, catalog):
    broken = Catalog(catalog.entries, [PluginError(plugin="shaky", distribution="shaky-dist", error="ValueError: no")])
    report = resolve_moe_impl(fp8_problem, MoEDeployment(), candidates=broken, request=MoERequest(bans=("nobody",)))
    text = as_text(explain(report, context=Context(notes=("somebody remarks",))))
    assert "  plugin shaky plugin_error: ValueError: no\n" in text
    assert "  the ban 'nobody' matches no candidate\n" in text
    assert "  somebody remarks\n" in text


def test_a_catalog_without_backends_says_so(fp8_problem):
    text = as_text(explain(resolve_moe_impl(fp8_problem, MoEDeployment(), candidates=())))
    assert text.startswith("failed   no installed plugin offers a backend\n")


def test_assumptions_of_the_winner_are_shown(resolved):
    text = as_text(explain(resolved(environment=MoEDeployment().environment)), width=200)
    assert "assumes  sm: 100 or 103; memory_needed: at most device_memory (unknown here)\n" in text
