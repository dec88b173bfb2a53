"""Ranks that resolved differently are named, with what they hold."""

from moe_core.contract.reasons import MoERejectReason
from moe_core.explain.agree import FIRST, agreement, agreement_document
from moe_core.explain.as_text import as_text


def test_equal_reports_agree(resolved):
    assert agreement([resolved(ep_size=8), resolved(ep_size=8), resolved(ep_size=8)]) == ()
    assert agreement([resolved()]) == ()


def test_buffers_of_different_size_are_named_with_their_ranks(resolved):
    ranks = [resolved(ep_size=4, dp_size=4, max_dispatch_tokens=tokens) for tokens in (128, 256, 128, 128)]
    [found] = agreement(ranks)
    assert found.reason is MoERejectReason.RANK_DISAGREEMENT
    assert str(found) == ("RANK_DISAGREEMENT deployment.max_dispatch_tokens: 128 on ranks 0, 2-3, 256 on rank 1")


def test_the_cause_comes_before_what_follows_from_it(resolved, hopper):
    other = hopper.evolve(sm=100)
    found = agreement([resolved(), resolved(environment=other)])
    assert found[0].path == "deployment.environment.sm"
    assert "backend.winner" in [d.path for d in found]


def test_page_shows_the_first_and_counts_the_rest(resolved, hopper):
    found = agreement([resolved(), resolved(environment=hopper.evolve(sm=100, name="other"))])
    assert len(found) > FIRST
    short = as_text(agreement_document(found, 2))
    assert short.startswith(f"ranks disagree in {len(found)} fields\n")
    assert short.count("RANK_DISAGREEMENT") == FIRST
    assert f"{len(found) - FIRST} more with --all\n" in short
    assert as_text(agreement_document(found, 2, everything=True)).count("RANK_DISAGREEMENT") == len(found)
    assert as_text(agreement_document((), 4)) == "equal: 4 ranks agree\n"
