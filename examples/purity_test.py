"""Test that resolution is pure: equal arguments, equal reports, byte for byte, whatever the order of candidates."""

from hypothesis import given, settings
from hypothesis import strategies as st

from moe_core.registry import load_catalog
from moe_core.resolve import resolve_moe_impl
from moe_core.resolve.resolver import clear_cache
from moe_core.testing.strategies import questions, requests

CANDIDATES = load_catalog().candidates


@settings(max_examples=25, deadline=None, database=None)
@given(questions(), requests(CANDIDATES), st.permutations(CANDIDATES))
def test_resolution_is_pure(question, request, shuffled):
    def resolve(candidates):
        clear_cache()
        report = resolve_moe_impl(question.problem, question.deployment, candidates=candidates, request=request)
        return report.canonical_json()

    assert resolve(CANDIDATES) == resolve(shuffled)
