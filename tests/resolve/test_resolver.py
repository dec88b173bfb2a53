"""The resolver: everybody is asked, pairs fit, requests narrow, stepping down is recorded."""

import os
import subprocess
import sys

import pytest

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.catalog import Catalog, CatalogEntry
from moe_core.contract.decision import PluginError
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.eligibility import MoEEligibility
from moe_core.contract.evidence import Evidence, Measurement
from moe_core.contract.problem import MoEProblem
from moe_core.contract.reasons import MoERejectReason as Reason
from moe_core.contract.report import MoEResolutionReport, UnresolvedError
from moe_core.contract.request import MoERequest
from moe_core.contract.vocabulary import CandidateKind, SelectedBy
from moe_core.resolve import UnknownRequestError, resolve_moe_impl
from moe_core.resolve.resolver import clear_cache


def resolve(problem, deployment, catalog, evidence=None, **request):
    return resolve_moe_impl(
        problem, deployment, candidates=catalog, request=MoERequest(**request), evidence=evidence or Evidence()
    )


def reasons(decision, identity):
    return [r.reason for r in decision.rejections_of(identity)]


def test_every_candidate_gets_exactly_one_decision_with_every_reason(catalog, bf16, ep8):
    report = resolve(bf16, ep8, catalog)
    for decision in report.decisions:
        asked = sorted(c.identity for c in catalog.candidates if c.kind is decision.kind)
        assert sorted([c.identity for c in decision.eligible] + [c.identity for c in decision.rejected]) == asked
    assert reasons(report.backend, "acme.fast.fused.fp8_block_scales") == [
        Reason.SM_UNSUPPORTED,
        Reason.QUANT_UNSUPPORTED,
    ]


def test_auto_takes_the_highest_priority_and_is_no_degradation(catalog, bf16, ep8):
    report = resolve(bf16, ep8, catalog)
    assert report.backend.winner == "acme.mega.kernel.none"
    assert report.selected_by is SelectedBy.PRIORITY
    assert report.degradations == ()
    assert report.ok


def test_a_fused_backend_takes_no_communication(catalog, bf16, ep8):
    report = resolve(bf16, ep8, catalog)
    assert report.communication.selected_by is SelectedBy.FUSED
    assert report.communication.winner is None
    assert set(reasons(report.communication, "acme.gather.scatter.any")) == {Reason.FORMAT_INCOMPATIBLE}


def test_a_model_that_routes_by_itself_needs_no_routing_kernel(catalog, bf16, ep8):
    router = MoECandidate(
        identity="acme.router.twin.any", kind="routing", family="ROUTER", title="a router", factory="pkg.mod:build"
    )
    with_router = Catalog.of((*catalog.candidates, router))
    assert resolve(bf16, ep8, with_router).decision(CandidateKind.ROUTING).winner == router.identity
    report = resolve(bf16.evolve(routing="Unspecified"), ep8, with_router)
    decision = report.decision(CandidateKind.ROUTING)
    assert (decision.winner, decision.selected_by) == (None, SelectedBy.MODEL)
    assert report.ok
    refused = Catalog.of((*catalog.candidates, router.evolve(factory=None)))
    assert not resolve(bf16, ep8, refused).ok


def test_a_backend_is_paired_with_the_best_strategy_that_fits(catalog, bf16, ep8):
    report = resolve(bf16, ep8, catalog, backend="pads")
    assert report.backend.winning.partner == report.communication.winner == "acme.nvl.onesided.any"
    # The row order of the low-latency strategy is not one that the backend takes.
    assert reasons(report.communication, "acme.ll.expertwise.any") == [Reason.FORMAT_INCOMPATIBLE]


def test_a_backend_that_routes_inside_has_no_partner_where_tokens_move(catalog, bf16, ep8, hopper):
    assert reasons(resolve(bf16, ep8, catalog).backend, "acme.router.inside.none") == [Reason.FORMAT_INCOMPATIBLE]
    alone = resolve(bf16, MoEDeployment(environment=hopper), catalog, backend="INSIDE")
    assert alone.backend.winner == "acme.router.inside.none"
    assert alone.communication.winner == "acme.local.nothing.any"


def test_the_pair_is_resolved_jointly_when_communication_is_asked_for(catalog, bf16, ep8):
    report = resolve(bf16, ep8, catalog, communication="DEEPEP")
    # The fused kernel has the higher priority, but takes no communication.
    assert report.backend.winner == "acme.pad.grouped.none"
    assert report.communication.winner == "acme.a2a.plain.any"
    assert report.communication.selected_by is SelectedBy.REQUEST
    assert report.degradations == ()


def test_an_expert_major_strategy_without_a_kernel_for_it_steps_down_and_says_so(catalog, bf16, ep8):
    report = resolve(bf16, ep8, catalog, backend="PADS", communication="DEEPEPLOWLATENCY")
    assert report.backend.winner == "acme.pad.grouped.none"
    assert report.communication.winner == "acme.nvl.onesided.any"
    assert report.communication.selected_by is SelectedBy.FALLBACK
    [step] = report.degradations
    assert (step.source, step.target) == ("DEEPEPLOWLATENCY", "acme.nvl.onesided.any")
    assert "FORMAT_INCOMPATIBLE" in step.reason


def test_a_strategy_that_a_rule_overrides_is_rejected_not_swapped(catalog, bf16, hopper):
    deployment = MoEDeployment(environment=hopper, ep_size=4, tp_size=2, dp_size=8)
    report = resolve(bf16, deployment, catalog, backend="PADS", communication="NVLINK_ONE_SIDED")
    assert reasons(report.communication, "acme.nvl.onesided.any") == [Reason.TOPOLOGY_UNSUPPORTED]
    assert report.communication.winner == "acme.gather.scatter.any"
    assert report.degradations[0].source == "NVLINK_ONE_SIDED"
    strict = resolve(bf16, deployment, catalog, communication="NVLINK_ONE_SIDED", allow_degradation=False)
    assert not strict.ok


def test_a_family_that_cannot_serve_steps_down_and_records_it(catalog, fp8, hopper):
    deployment = MoEDeployment(environment=hopper, tp_size=4)
    report = resolve(fp8, deployment, catalog, backend="tile")
    assert report.backend.winner == "acme.loop.reference.any"
    assert report.selected_by is SelectedBy.FALLBACK
    assert report.degraded_from == "TILE"
    assert (
        "SHAPE_UNALIGNED intermediate_size_per_tp: found 192, needed a multiple of 128" in report.degradations[0].reason
    )


@pytest.mark.parametrize("pin", ["acme.tile.grouped.none", "tile.grouped.none"])
def test_identities_and_queries_never_step_down(catalog, fp8, ep8, pin):
    report = resolve(fp8, ep8, catalog, backend=pin)
    assert not report.ok
    assert report.selected_by is SelectedBy.FAILED


def test_vanilla_never_steps_down(catalog, bf16, ep8):
    report = resolve(bf16.evolve(activation="Geglu"), ep8, catalog, backend="VANILLA")
    assert not report.ok
    assert report.degradations == ()


def test_a_failed_report_raises_with_the_whole_trail(catalog, fp8, ep8):
    report = resolve(fp8, ep8, catalog, backend="acme.fast.fused.fp8_block_scales")
    with pytest.raises(UnresolvedError) as caught:
        report.winner()
    assert caught.value.report is report
    for candidate in report.backend.rejected:
        assert candidate.identity in str(caught.value)
    assert "SM_UNSUPPORTED sm: found 90, needed 100" in str(caught.value)


def test_strict_requests_fail_instead_of_stepping_down(catalog, fp8, hopper):
    report = resolve(
        fp8, MoEDeployment(environment=hopper, tp_size=4), catalog, backend="TILE", allow_degradation=False
    )
    assert report.selected_by is SelectedBy.FAILED
    assert [c.identity for c in report.backend.eligible] == ["acme.loop.reference.any"], "shown as an alternative"
    assert not report.backend.eligible[0].in_request


def test_a_winner_can_always_run(catalog, bf16, ep8):
    report = resolve(bf16, ep8, catalog)
    assert reasons(report.backend, "acme.absent.grouped.none") == [Reason.PATH_NOT_ENABLED]
    assert reasons(resolve(bf16, ep8, catalog, require_adapter=False).backend, "acme.absent.grouped.none") == []
    assert resolve(bf16, ep8, catalog, require_adapter=False).backend.winner == "acme.absent.grouped.none"


def test_the_missing_adapter_is_the_last_reason(catalog, bf16, ep8):
    elsewhere = ep8.evolve(environment=ep8.environment.evolve(sm=80))
    found = reasons(resolve(bf16, elsewhere, catalog).backend, "acme.absent.grouped.none")
    assert found == [Reason.SM_UNSUPPORTED, Reason.PATH_NOT_ENABLED]


def test_the_upstream_view_shows_upstream_alone_with_its_fallback(catalog, bf16, ep8):
    report = resolve(bf16, ep8, catalog, upstream=True, backend="TILE")
    identities = {c.identity for c in report.backend.eligible} | {c.identity for c in report.backend.rejected}
    assert identities == {"acme.tile.grouped.fp8_block_scales", "acme.cutlass.grouped.none"}
    assert report.communication.winner is None, "no upstream strategy is in this catalog"


BANS = ["acme.mega.kernel.none", "MEGA", "mega"]


@pytest.mark.parametrize("ban", BANS)
def test_bans_work_by_identity_and_family_and_stay_visible(catalog, bf16, ep8, ban):
    report = resolve(bf16, ep8, catalog, bans=(ban,))
    assert reasons(report.backend, "acme.mega.kernel.none") == [Reason.BANNED]
    assert report.backend.winner == "acme.pad.grouped.none"


def test_bans_work_by_distribution(catalog, bf16, ep8):
    entries = [CatalogEntry(c, "acme-kernels" if "mega" in c.identity else None) for c in catalog.candidates]
    report = resolve(bf16, ep8, Catalog(entries), bans=("acme-kernels",))
    assert reasons(report.backend, "acme.mega.kernel.none") == [Reason.BANNED]


def test_a_ban_of_nothing_is_noted(catalog, bf16, ep8):
    assert resolve(bf16, ep8, catalog, bans=("mgea",)).notes == ("the ban 'mgea' matches no candidate",)


UNKNOWN = {
    "MGEA": "did you mean MEGA",
    "acme.mega.kernal.none": "did you mean acme.mega.kernel.none",
    "WIDEEP": "withdrawn",
    "*": "names no segment",
    "a..b": "is no request",
    "": "is no request",
    "mega.tile": "names the technique twice",
    "mega.grouped": "matches no identity",
}


@pytest.mark.parametrize(("asked", "message"), UNKNOWN.items())
def test_an_unknown_request_is_an_error_before_anybody_is_asked(catalog, bf16, ep8, asked, message):
    def never(problem, deployment):
        raise AssertionError("asked")

    silent = Catalog(CatalogEntry(c, None, never) for c in catalog.candidates)
    with pytest.raises(UnknownRequestError, match=message):
        resolve(bf16, ep8, silent, backend=asked)


def test_queries_name_segments_in_any_order(catalog, fp8, ep8):
    report = resolve(fp8, ep8, catalog, backend="fp8_block_scales.*.tile")
    assert report.backend.winner == "acme.tile.grouped.fp8_block_scales"
    assert report.selected_by is SelectedBy.REQUEST


def test_unknown_facts_abstain_and_the_winner_names_its_assumptions(catalog, bf16):
    report = resolve(bf16, MoEDeployment(), catalog, backend="PADS")
    assert report.backend.winner == "acme.pad.grouped.none"
    assert {a.fact for a in report.assumptions} == {"sm", "memory_needed"}


def test_padding_that_applies_is_in_the_report(catalog, bf16, hopper):
    report = resolve(bf16, MoEDeployment(environment=hopper, tp_size=8), catalog, backend="PADS")
    [padding] = report.backend.winning.adjustments
    assert (padding.kind, padding.found, padding.becomes) == ("pad", 96, 128)


def test_contradictions_leave_no_winner_but_every_answer(catalog, bf16, ep8):
    report = resolve(bf16, ep8.evolve(parallel_size=16), catalog)
    assert [r.fact for r in report.invalid] == ["parallel_size", "dp_size"]
    assert not report.ok
    assert report.backend.eligible
    with pytest.raises(UnresolvedError, match="parallel_size: found 16"):
        report.winner()


def test_memory_is_a_gate(catalog, bf16, ep8):
    small = ep8.evolve(environment=ep8.environment.evolve(device_memory=10**6))
    report = resolve(bf16, small, catalog)
    assert not report.ok
    assert all(Reason.RESOURCE_EXCEEDED in [r.reason for r in c.rejections] for c in report.backend.rejected)
    assert report.memory.weights == 16 * 3 * 2048 * 768 * 2


def measured(problem, deployment, tokens, **times):
    return tuple(
        Measurement(
            identity=identity, problem=problem.fingerprint, environment=deployment.environment.fingerprint,
            ep_size=deployment.ep_size, tp_size=deployment.tp_size, tokens=tokens, microseconds=us,
        )
        for identity, us in times.items()
    )  # fmt: skip


def test_evidence_swaps_measured_candidates_and_leaves_the_others(catalog, bf16, ep8):
    times = {"acme.mega.kernel.none": 90.0, "acme.loop.reference.any": 30.0}
    evidence = Evidence(measurements=measured(bf16, ep8, 8, **times))
    report = resolve(bf16, ep8, catalog, evidence)
    assert [c.identity for c in report.backend.eligible] == [
        "acme.loop.reference.any",
        "acme.pad.grouped.none",
        "acme.mega.kernel.none",
    ]
    assert report.selected_by is SelectedBy.EVIDENCE
    assert report.backend.winning.microseconds == 30.0


def test_evidence_of_another_geometry_is_ignored_with_a_note(catalog, bf16, ep8):
    other = bf16.evolve(hidden_size=4096)
    evidence = Evidence(measurements=measured(other, ep8, 8, **{"acme.loop.reference.any": 1.0}))
    report = resolve(bf16, ep8, catalog, evidence)
    assert report.selected_by is SelectedBy.PRIORITY
    assert report.backend.notes == (
        "1 of 1 measurements are of another problem, machine or partition and were not used",
    )


def test_token_buckets_decide_separately(catalog, bf16, ep8):
    times = {"acme.mega.kernel.none": 10.0, "acme.pad.grouped.none": 5.0}
    slow = {"acme.mega.kernel.none": 100.0, "acme.pad.grouped.none": 500.0}
    evidence = Evidence(measurements=measured(bf16, ep8, 16, **times) + measured(bf16, ep8, 4096, **slow))
    report = resolve(bf16, ep8, catalog, evidence, token_buckets=(16, 4096))
    assert report.winner(CandidateKind.BACKEND, 8).identity == "acme.pad.grouped.none"
    assert report.winner(CandidateKind.BACKEND, 17).identity == "acme.mega.kernel.none"
    assert report.winner(CandidateKind.COMMUNICATION, 8).identity == "acme.nvl.onesided.any"


def test_formats_that_a_strategy_cannot_move_are_a_recorded_step_down(catalog, fp8, ep8):
    report = resolve(fp8, ep8, catalog, communication="DEEPEP")
    [step] = report.degradations
    assert (step.source, step.target) == ("quantize before dispatch", "quantize after dispatch")
    assert "moves no format quantized, not FP8_BLOCK_SCALES" in step.reason
    assert resolve(fp8.evolve(quant="NONE"), ep8, catalog, communication="DEEPEP").degradations == ()


def raises(problem, deployment):
    raise RuntimeError("boom\nand more")


def answers_yes(problem, deployment):
    return True


@pytest.mark.parametrize(
    ("answer", "found"), [(raises, "can_implement raised RuntimeError: boom"), (answers_yes, "returned bool")]
)
def test_a_plugin_that_breaks_in_can_implement_is_a_row_not_a_crash(catalog, bf16, ep8, answer, found):
    entries = [CatalogEntry(c, None, answer if "mega" in c.identity else None) for c in catalog.candidates]
    report = resolve(bf16, ep8, Catalog(entries))
    [rejection] = report.backend.rejections_of("acme.mega.kernel.none")
    assert rejection.reason is Reason.PLUGIN_ERROR
    assert found in rejection.found
    assert report.backend.winner == "acme.pad.grouped.none"


def test_a_plugins_own_answer_counts(catalog, bf16, ep8):
    def fine(problem, deployment):
        return MoEEligibility.ok()

    entries = [CatalogEntry(c, None, fine if "fast" in c.identity else None) for c in catalog.candidates]
    assert resolve(bf16, ep8, Catalog(entries)).backend.winner == "acme.fast.fused.fp8_block_scales"


def test_plugin_errors_of_the_catalog_are_in_the_report(catalog, bf16, ep8):
    error = PluginError(plugin="broken", distribution="acme", error="ImportError: no")
    report = resolve(bf16, ep8, Catalog(catalog.entries, [error]))
    assert report.plugin_errors == (error,)


def test_order_of_discovery_never_matters(catalog, bf16, ep8):
    backwards = Catalog(catalog.entries[::-1])
    assert backwards.fingerprint == catalog.fingerprint
    assert resolve(bf16, ep8, backwards).to_json() == resolve(bf16, ep8, catalog).to_json()


def test_reports_survive_json_on_success_and_failure(catalog, fp8, ep8):
    for backend in ("auto", "acme.fast.fused.fp8_block_scales"):
        report = resolve(fp8, ep8, catalog, backend=backend)
        again = MoEResolutionReport.from_json(report.to_json())
        assert again == report
        assert again.fingerprint == report.fingerprint


def test_equal_arguments_give_one_cached_report(catalog, bf16, ep8):
    clear_cache()
    first = resolve(bf16, ep8, catalog)
    assert resolve(bf16.evolve(), ep8.evolve(), catalog) is first
    clear_cache()
    assert resolve(bf16, ep8, catalog) == first


def test_reports_are_equal_byte_for_byte_across_processes_and_hash_seeds(pytestconfig):
    code = (
        "import sys; sys.path.insert(0, 'tests/resolve')\n"
        "from conftest import CANDIDATES\n"
        "from moe_core.contract.deployment import MoEDeployment\n"
        "from moe_core.contract.problem import MoEProblem\n"
        "from moe_core.resolve import resolve_moe_impl\n"
        "problem = MoEProblem(quant='NONE', hidden_size=2048, intermediate_size=768, num_experts=128, top_k=8)\n"
        "deployment = MoEDeployment(ep_size=8, dp_size=8)\n"
        "sys.stdout.write(resolve_moe_impl(problem, deployment, candidates=CANDIDATES).to_json())\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=pytestconfig.rootpath,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "7", "random")
    }  # fmt: skip
    assert len(outputs) == 1
    assert MoEResolutionReport.from_json(outputs.pop()).ok


def test_nobody_to_ask_is_a_failed_report():
    report = resolve_moe_impl(MoEProblem(), MoEDeployment(), candidates=())
    with pytest.raises(UnresolvedError, match="no plugin offers one"):
        report.winner()
