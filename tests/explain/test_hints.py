"""Hints: merged, in order of what they change, with legal sizes nearby."""

import pytest

from moe_core.contract.catalog import Catalog, CatalogEntry
from moe_core.contract.tuning import Tuning
from moe_core.contract.vocabulary import FixableBy, SelectedBy
from moe_core.explain import explain
from moe_core.explain.as_text import as_text
from moe_core.explain.hints import hints_of


def by_text(report):
    return {hint.advice.text: hint for hint in hints_of([report])}


def test_a_hint_says_who_would_win_and_which_sizes_are_legal(resolved):
    hint = by_text(resolved(tp_size=8))["use a smaller tp_size, or EP"]
    assert hint.wins == ("delta.triton.grouped.fp8_block_scales",)
    assert hint.advice.fixable_by is FixableBy.TOPOLOGY
    assert hint.advice.neighbours == ("tp_size 2, 3 or 6", "ep_size 8 instead of tensor parallelism")


def test_what_is_behind_the_winner_is_eligible_but_does_not_win(resolved):
    hint = by_text(resolved(ep_size=8, bans=("omega.torch.loop.any",)))["lift the ban of omega.torch.loop.any"]
    assert (hint.wins, hint.unlocks) == ((), ("omega.torch.loop.any",))


def test_what_would_not_pass_the_place_that_a_fast_one_was_moved_to_does_not_win(resolved, catalog):
    def expecting(microseconds):
        return lambda *question: Tuning(source="table", key="a GPU", microseconds=microseconds)

    tunings = {"delta.triton.grouped.fp8_block_scales": expecting(9.0), "omega.torch.loop.any": expecting(1.0)}
    tuned = Catalog(CatalogEntry(c, moe_tuning=tunings.get(c.identity)) for c in catalog.candidates)
    ban = "delta.triton.padded.fp8_block_scales"
    report = resolved(candidates=tuned, max_num_tokens=64, bans=(ban,))
    assert report.selected_by is SelectedBy.PREDICTED
    hint = by_text(report)[f"lift the ban of {ban}"]
    assert (hint.wins, hint.unlocks) == ((), (ban,))
    assert resolved(candidates=tuned, max_num_tokens=64).winner().identity == "omega.torch.loop.any"


@pytest.mark.parametrize(
    ("asked", "wins"),
    [("auto", True), ("BETA", True), ("beta.cuda", True), ("DELTA", False), ("delta.grouped", False)],
)
def test_what_was_not_asked_for_does_not_win(asked, wins, resolved):
    hint = by_text(resolved(ep_size=8, backend=asked))["install beta"]
    assert (hint.wins if wins else hint.unlocks) == ("beta.cuda.grouped.fp8_block_scales",)


def test_one_of_several_reasons_is_counted(resolved):
    hint = by_text(resolved(ep_size=8, dp_size=8, backend="ALPHA", allow_degradation=False))["install alpha >= 2.0"]
    assert (hint.wins, hint.unlocks, hint.helps) == ((), (), ("alpha.cuda.fused.nvfp4",))
    assert hint.fewest_reasons == 4


def test_a_missing_adapter_is_no_hint_and_keeps_others_from_unlocking(resolved):
    report = resolved(bans=("gamma.cuda.grouped.fp8_block_scales",))
    hint = by_text(report)["lift the ban of gamma.cuda.grouped.fp8_block_scales"]
    assert (hint.wins, hint.unlocks, hint.helps) == ((), (), ("gamma.cuda.grouped.fp8_block_scales",))
    assert "declared only: no installed plugin can run it yet" not in by_text(report)


def test_a_failed_decision_is_the_only_one_that_gets_hints(resolved):
    report = resolved(ep_size=8, dp_size=8, backend="ALPHA", allow_degradation=False)
    communication = {c.identity for c in report.communication.rejected}
    assert communication
    concerned = {i for h in hints_of([report]) for i in (*h.wins, *h.unlocks, *h.helps)}
    assert concerned
    assert not concerned & communication


def test_equal_hints_of_several_reports_are_one(resolved):
    once, twice = hints_of([resolved(tp_size=8)]), hints_of([resolved(tp_size=8), resolved(tp_size=8, dp_size=8)])
    assert len([h for h in twice if h.advice.text == "install beta"]) == 1
    assert {h.advice for h in once} <= {h.advice for h in twice}


def test_hints_are_last_and_short_unless_asked_for(resolved):
    report = resolved(tp_size=8)
    short, full = as_text(explain(report)), as_text(explain(report, everything=True))
    assert short.index("\nhints\n") > short.index("refused")
    assert "more hint with --all" in short
    assert "with --all" not in full
