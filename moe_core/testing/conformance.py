"""The suite that every plugin passes, whoever wrote it. In a test file of the plugin's own distribution::

from moe_core.testing import PluginConformance


class TestHello(PluginConformance):
    plugin = "moe_hello:PLUGIN"
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

try:
    import pytest
    from hypothesis import Phase, given, settings
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError(
        f'moe_core.testing.conformance needs {error.name}, which is not installed: pip install "moe-core[test]"'
    ) from error

from moe_core.environment import checked_facts
from moe_core.registry import PluginContractError, plugin_facts
from moe_core.testing import laws
from moe_core.testing.backends import CHECKS, BackendTrial, UntriedError
from moe_core.testing.boundary import boundary_cases, typical_question
from moe_core.testing.isolated import observe, questions_for
from moe_core.testing.question import NEEDED_TO_TUNE, TOKENS, UNKNOWABLE, Question, forget, knows_no_more
from moe_core.testing.strategies import questions_about, with_less_known
from moe_core.testing.subject import Subject, load_subjects
from moe_core.testing.trials import check_all, machine_for, trials_of

repeatable = settings(
    max_examples=40, deadline=None, database=None, derandomize=True, phases=set(Phase) - {Phase.explain, Phase.reuse}
)


class PluginConformance:
    """Tests of every plugin that `plugin` names. Subclass it; each test is one promise of a plugin."""

    plugin: ClassVar[str]
    """``package.module:NAME``, as in the entry point: a plugin, or a list or tuple of them."""
    light_imports: ClassVar[tuple[str, ...]] = ()
    """Packages that the declaration may import beside its own, the standard library and moe_core."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """A test per plugin, and per check of what it computes."""
        if "subject" in metafunc.fixturenames:
            metafunc.parametrize("subject", _subjects_that_load(self.plugin), ids=str)
        if "check" in metafunc.fixturenames:
            metafunc.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("assert_"))

    def trials(self, subject: Subject) -> Sequence[BackendTrial]:
        """What a backend computes on this machine; override it for problems that the kit does not think of."""
        return trials_of(subject.candidate, machine_for(subject.registry))

    def test_keeps_the_contract(self) -> None:
        """It loads, answers every question with an eligibility, and finds facts under its own prefix."""
        for subject in load_subjects(self.plugin):
            for question in questions_for(subject):
                subject.ask(question)
            _, errors = checked_facts(plugin_facts(subject.registry))
            assert not errors, f"{subject}: {'; '.join(errors)}"

    def test_declaration_is_light(self) -> None:
        """Importing it needs no torch, no triton and no other package that moe_core itself does without."""
        for observation in observe(self.plugin):
            laws.assert_light(observation, self.light_imports)

    def test_can_implement_is_pure(self, subject: Subject) -> None:
        """Its answer is a function of the question: same again, in another process, and with everything trapped."""
        laws.assert_pure(subject, questions_for(subject), observe(self.plugin))

    def test_abstains_on_the_unknown(self, subject: Subject) -> None:
        """Knowing more never turns a refusal into an acceptance of the same question."""
        accepted = [q for q in questions_for(subject) if subject.ask(q)]
        for question in accepted:
            for fields in (UNKNOWABLE, *([field] for field in UNKNOWABLE)):
                less = forget(question, *fields)
                if knows_no_more(less, question):
                    laws.assert_abstains(subject, less, question)
        anything = questions_about(subject.candidate)

        @repeatable
        @given(st.data(), st.sampled_from(accepted) | anything if accepted else anything)
        def knowing_more_never_helps(data: st.DataObject, more: Question) -> None:
            less = data.draw(with_less_known(more))
            if knows_no_more(less, more):
                laws.assert_abstains(subject, less, more)

        knowing_more_never_helps()

    def test_tuning_is_pure(self, subject: Subject) -> None:
        """What it expects, if it says so, is a function of the question too; tables are read before it is asked."""
        if subject.is_tuned:
            laws.assert_tuning_pure(subject, questions_for(subject), observe(self.plugin))

    def test_tuning_abstains_on_the_unknown(self, subject: Subject) -> None:
        """It expects nothing where a size or the device is unknown, and answers every question that it accepts."""
        if not subject.is_tuned:
            return
        for question in questions_for(subject):
            for asked in (question, *(forget(question, field) for field in NEEDED_TO_TUNE)):
                if subject.ask(asked):
                    for tokens in TOKENS:
                        laws.assert_tuned(subject, asked, tokens)

        @repeatable
        @given(questions_about(subject.candidate), st.integers(1, 2**17))
        def every_accepted_question_is_answered(question: Question, tokens: int) -> None:
            if subject.ask(question):
                laws.assert_tuned(subject, question, tokens)

        every_accepted_question_is_answered()

    def test_rejects_with_reasons(self, subject: Subject) -> None:
        """A refusal gives all reasons, and each says what it looked at, what it found and what it needs."""
        for question in questions_for(subject):
            laws.assert_reasons(subject, question)

        @repeatable
        @given(questions_about(subject.candidate))
        def every_refusal_is_explained(question: Question) -> None:
            laws.assert_reasons(subject, question)

        every_refusal_is_explained()

    def test_honours_its_declared_limits(self, subject: Subject) -> None:
        """On and just past each declared limit, its answer is at least as strict as its declaration."""
        assert typical_question(subject.candidate) is not None, (
            f"{subject}: no question was found that its declaration accepts; do its requirements contradict each other?"
        )
        for case in boundary_cases(subject.candidate):
            laws.assert_honours(subject, case)

    def test_is_resolved(self, subject: Subject) -> None:
        """The resolver gives it exactly one row, whether it accepts or refuses."""
        for question in questions_for(subject):
            laws.assert_resolved(subject, question)

    def test_computes_what_it_declares(self, subject: Subject, check: Callable[[BackendTrial], None]) -> None:
        """Its backend keeps each promise of a backend, on this machine and next to the float32 twin."""
        try:
            check_all(check, self.trials(subject))
        except UntriedError as reason:
            pytest.skip(str(reason))


def _subjects_that_load(spec: str) -> tuple[Subject, ...]:
    try:
        return load_subjects(spec)
    except (PluginContractError, ImportError, AttributeError):
        return ()  # test_keeps_the_contract shows why
