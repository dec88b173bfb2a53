"""Laws of ``can_implement`` over every first-party candidate, on questions about anything."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.gates import gates_of
from moe_core.contract.problem import MoEProblem
from moe_core.environment import mentioned_facts
from moe_core.registry import load_registry
from moe_core.testing import laws
from moe_core.testing.boundary import boundary_cases, typical_question
from moe_core.testing.question import Question, knows_no_more
from moe_core.testing.strategies import questions, with_less_known
from moe_core.testing.subject import Subject
from moe_plugins import PLUGINS

REGISTRY = load_registry(plugins=PLUGINS, points=())
SUBJECTS = [Subject(plugin) for plugin in REGISTRY.plugins]


def mentioned(family):
    return [name.removeprefix(f"{family}:") for name in mentioned_facts(REGISTRY.catalog) if name.startswith(family)]


anything = questions(packages=mentioned("package"), features=mentioned("feature"), flags=mentioned("flag"))


@settings(max_examples=30, deadline=None)
@given(anything)
def test_equal_questions_get_equal_answers(question):
    # The copy shares nothing with the original, so no cache can answer for it by identity.
    problem, deployment = question
    copy = Question(MoEProblem.from_json(problem.to_json()), MoEDeployment.from_json(deployment.to_json()))
    for subject in SUBJECTS:
        first = subject.ask(question)
        assert subject.ask(copy) == first
        assert subject.ask(copy).canonical_json() == first.canonical_json()


@settings(max_examples=30, deadline=None)
@given(st.data(), anything)
def test_knowing_more_never_turns_a_refusal_into_an_acceptance(data, more):
    less = data.draw(with_less_known(more))
    if knows_no_more(less, more):
        for subject in SUBJECTS:
            laws.assert_abstains(subject, less, more)


@settings(max_examples=30, deadline=None)
@given(anything)
def test_a_refusal_gives_every_reason(question):
    for subject in SUBJECTS:
        laws.assert_reasons(subject, question)


@settings(max_examples=30, deadline=None)
@given(anything, st.integers(1, 2**17))
def test_what_is_accepted_can_be_asked_for_its_tuning(question, tokens):
    for subject in SUBJECTS:
        if subject.is_tuned and subject.ask(question):
            laws.assert_tuned(subject, question, tokens)


@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_what_is_accepted_is_accepted_when_less_is_known(subject):
    @settings(max_examples=10, deadline=None)
    @given(with_less_known(typical_question(subject.candidate)))
    def law(less):
        if knows_no_more(less, typical_question(subject.candidate)):
            laws.assert_abstains(subject, less, typical_question(subject.candidate))

    law()


@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_limits_can_be_met_and_are_honoured(subject):
    cases = boundary_cases(subject.candidate)
    assert {case.requirement for case in cases if case.met} == set(gates_of(subject.candidate))
    for case in cases:
        laws.assert_honours(subject, case)
