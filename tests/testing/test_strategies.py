"""Strategies draw valid values only, which do not contradict each other and reach every corner."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from kit_examples.honest import declaration

from moe_core.contract.check import check
from moe_core.contract.declare import feature, flag, need, package
from moe_core.contract.facts import ABSENT, UNSET
from moe_core.contract.predicate import Equals
from moe_core.contract.reasons import MoERejectReason as Reason
from moe_core.contract.vocabulary import Device
from moe_core.resolve import UnknownRequestError, resolve_moe_impl
from moe_core.testing.boundary import PLAIN
from moe_core.testing.question import knows_no_more
from moe_core.testing.strategies import questions, questions_about, requests, with_less_known

MENTIONING = declaration(
    "mentioning",
    requirements=(
        package("their_kernels"),
        feature("their_kernels.fast"),
        flag("THEIR_SWITCH", "1"),
        need(Reason.PATH_NOT_ENABLED, "plugin:example.ready", Equals(value=True)),
    ),
)


@settings(max_examples=100, deadline=None)
@given(questions())
def test_questions_do_not_contradict_themselves(question):
    assert check(*question) == ()


@settings(max_examples=50, deadline=None)
@given(with_less_known(PLAIN))
def test_less_known_is_the_same_question(less):
    assert knows_no_more(less, PLAIN)


@settings(max_examples=25, deadline=None)
@given(requests([MENTIONING]))
def test_requests_name_what_there_is(request):
    try:
        report = resolve_moe_impl(*PLAIN, candidates=[MENTIONING], request=request)
    except UnknownRequestError as error:
        pytest.fail(str(error))
    assert report.request == request


REACHED = {
    "package:their_kernels": {ABSENT},
    "feature:their_kernels.fast": {True, False, None},
    "flag:THEIR_SWITCH": {"1", UNSET},
    "plugin:example.ready": {True, None},
    "device": set(Device),
    "eplb_enabled": {True, False},
    "is_gated": {True, False},
    "top_k": {1, 2, 3},
}


def test_both_sides_of_what_a_candidate_mentions_are_reached():
    seen = {fact: set() for fact in REACHED}

    # What is drawn depends on the modules that are loaded too (hypothesis picks constants from them): draw plenty.
    @settings(max_examples=400, deadline=None, derandomize=True, database=None)
    @given(questions_about(MENTIONING))
    def look(question):
        for fact in seen:
            seen[fact].add(question.facts[fact])

    look()
    assert {fact: values - seen[fact] for fact, values in REACHED.items()} == {fact: set() for fact in REACHED}


def test_a_missing_hypothesis_is_named():
    for statement in ("import moe_core.testing.strategies", "from moe_core.testing import PluginConformance"):
        code = f"import sys; sys.modules['hypothesis'] = None\n{statement}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert 'needs hypothesis, which is not installed: pip install "moe-core[test]"' in done.stderr
