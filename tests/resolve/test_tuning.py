"""What plugins expect of their candidates: asked where it can count, swapped like evidence, and never mixed with it."""

import json

import pytest

from moe_core.contract.catalog import Catalog, CatalogEntry
from moe_core.contract.evidence import Evidence, Measurement
from moe_core.contract.reasons import MoERejectReason as Reason
from moe_core.contract.report import MoEResolutionReport
from moe_core.contract.request import MoERequest
from moe_core.contract.tuning import Tuning
from moe_core.contract.vocabulary import CandidateKind, SelectedBy
from moe_core.resolve import resolve_moe_impl

MEGA, PADS, LOOP = "acme.mega.kernel.none", "acme.pad.grouped.none", "acme.loop.reference.any"
BY_PRIORITY = [MEGA, PADS, LOOP]


class TableError(ValueError):
    pass


def expecting(microseconds, source="table", note=""):
    return lambda problem, deployment, tokens: Tuning(
        source=source, key=f"{tokens} tokens", microseconds=microseconds, note=note
    )


def tuned(catalog, **tunings):
    """`catalog` in which plugins, by the technique of their identity, answer moe_tuning."""
    return Catalog(CatalogEntry(c, moe_tuning=tunings.get(c.identity.split(".")[1])) for c in catalog.candidates)


def resolve(problem, deployment, catalog, evidence=None, **request):
    return resolve_moe_impl(
        problem, deployment, candidates=catalog, request=MoERequest(**request), evidence=evidence or Evidence()
    )


def measured(problem, deployment, **times):
    return Evidence(
        measurements=tuple(
            Measurement(
                identity=f"acme.{name}", problem=problem.fingerprint, environment=deployment.environment.fingerprint,
                ep_size=deployment.ep_size, tp_size=deployment.tp_size, tokens=8, microseconds=us,
            )
            for name, us in times.items()
        )
    )  # fmt: skip


def order(report):
    return [c.identity for c in report.backend.eligible]


def test_those_that_expect_a_time_swap_and_the_others_keep_their_places(catalog, bf16, ep8):
    report = resolve(bf16, ep8, tuned(catalog, mega=expecting(90.0), loop=expecting(30.0)))
    assert order(report) == [LOOP, PADS, MEGA]
    assert report.selected_by is SelectedBy.PREDICTED
    assert report.backend.winning.tuning == Tuning(source="table", key="4096 tokens", microseconds=30.0)
    assert [c.tuning is None for c in report.backend.eligible] == [False, True, False]


def test_expectations_that_agree_with_priority_decide_nothing(catalog, bf16, ep8):
    report = resolve(bf16, ep8, tuned(catalog, mega=expecting(30.0), loop=expecting(90.0)))
    assert order(report) == BY_PRIORITY
    assert report.selected_by is SelectedBy.PRIORITY


def test_a_winner_that_was_not_moved_won_by_priority(catalog, bf16, ep8):
    report = resolve(bf16, ep8, tuned(catalog, pad=expecting(90.0), loop=expecting(30.0)))
    assert order(report) == [MEGA, LOOP, PADS]
    assert report.selected_by is SelectedBy.PRIORITY


def test_equal_expectations_keep_the_order_of_priority(catalog, bf16, ep8):
    assert order(resolve(bf16, ep8, tuned(catalog, mega=expecting(5.0), loop=expecting(5.0)))) == BY_PRIORITY


def test_a_tuning_without_a_time_is_shown_and_moves_nothing(catalog, bf16, ep8):
    report = resolve(bf16, ep8, tuned(catalog, mega=expecting(None), loop=expecting(1.0)))
    assert order(report) == BY_PRIORITY
    assert report.backend.winning.tuning.microseconds is None


def test_one_measurement_silences_all_expectations(catalog, bf16, ep8):
    with_tuning = tuned(catalog, mega=expecting(90.0), loop=expecting(30.0))
    report = resolve(bf16, ep8, with_tuning, measured(bf16, ep8, **{"pad.grouped.none": 1.0}))
    assert order(report) == BY_PRIORITY
    assert report.backend.notes == ("2 expected times were not used: there are measurements",)
    assert report.backend.winning.tuning.microseconds == 90.0


def test_measured_and_expected_times_are_never_compared(catalog, bf16, ep8):
    times = {"mega.kernel.none": 90.0, "loop.reference.any": 30.0}
    report = resolve(bf16, ep8, tuned(catalog, pad=expecting(1.0)), measured(bf16, ep8, **times))
    assert order(report) == [LOOP, PADS, MEGA]
    assert report.selected_by is SelectedBy.EVIDENCE
    assert report.backend.notes == ()


def test_evidence_of_another_problem_silences_nothing(catalog, bf16, ep8):
    elsewhere = measured(bf16.evolve(hidden_size=4096), ep8, **{"pad.grouped.none": 1.0})
    report = resolve(bf16, ep8, tuned(catalog, mega=expecting(90.0), loop=expecting(30.0)), elsewhere)
    assert report.selected_by is SelectedBy.PREDICTED


def test_a_request_goes_before_expectations(catalog, bf16, ep8):
    report = resolve(bf16, ep8, tuned(catalog, pad=expecting(90.0), loop=expecting(30.0)), backend="PADS")
    assert (report.backend.winner, report.selected_by) == (PADS, SelectedBy.REQUEST)


def test_each_bucket_is_asked_for_its_own_tokens(catalog, bf16, ep8):
    def better_small(problem, deployment, tokens):
        return Tuning(source="table", key=f"{tokens}", microseconds=float(tokens))

    report = resolve(bf16, ep8, tuned(catalog, mega=expecting(100.0), loop=better_small), token_buckets=(16, 512, 8192))
    decisions = [d for d in report.decisions if d.kind is CandidateKind.BACKEND]
    assert [d.winner for d in decisions] == [LOOP, MEGA, MEGA]
    # No rank brings more than the deployment's limit.
    assert [d.eligible[-1 if d.winner == MEGA else 0].tuning.key for d in decisions] == ["16", "512", "4096"]


def test_nobody_is_asked_without_a_number_of_tokens(catalog, bf16, ep8):
    def never(problem, deployment, tokens):
        raise AssertionError("asked")

    report = resolve(bf16, ep8.evolve(max_num_tokens=None), tuned(catalog, mega=never, loop=never))
    assert order(report) == BY_PRIORITY


def test_only_eligible_backends_are_asked(catalog, bf16, ep8):
    asked = []

    def note(problem, deployment, tokens):
        asked.append(tokens)

    everyone = dict.fromkeys(("fast", "tile", "absent", "mega", "loop", "gather", "nvl"), note)
    resolve(bf16, ep8, tuned(catalog, **everyone), bans=("MEGA",))
    assert asked == [4096]


def broken(problem, deployment, tokens):
    raise TableError("tables/acme.json: expected a list of entries\nand more")


@pytest.mark.parametrize(
    ("tuning", "found"),
    [
        (broken, "moe_tuning raised TableError: tables/acme.json: expected a list of entries"),
        (lambda *question: 12.0, "moe_tuning returned float, not Tuning"),
    ],
)
def test_who_cannot_say_what_it_would_run_is_refused_and_says_why(catalog, bf16, ep8, tuning, found):
    report = resolve(bf16, ep8, tuned(catalog, mega=tuning))
    [rejection] = report.backend.rejections_of(MEGA)
    assert (rejection.reason, rejection.fact, rejection.found) == (Reason.PLUGIN_ERROR, "moe_tuning", found)
    assert report.backend.winner == PADS


def test_a_report_with_tunings_survives_json(catalog, bf16, ep8):
    report = resolve(bf16, ep8, tuned(catalog, loop=expecting(3.0, "nearest", "no entry for this GPU")))
    assert MoEResolutionReport.from_json(report.to_json()) == report
    [row] = [c for c in json.loads(report.to_json())["decisions"][0]["eligible"] if c["identity"] == LOOP]
    assert row["tuning"] == {
        "source": "nearest", "key": "4096 tokens", "microseconds": 3.0, "note": "no entry for this GPU",
    }  # fmt: skip
