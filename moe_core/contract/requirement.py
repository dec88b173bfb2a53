"""Requirements: a candidate's limits as data. Evaluating a list of them is what ``can_implement`` does."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from pydantic import model_validator

from moe_core.contract.base import Frozen
from moe_core.contract.facts import is_fact_name
from moe_core.contract.predicate import Predicate
from moe_core.contract.reasons import MoERejectReason
from moe_core.contract.vocabulary import FixableBy

if TYPE_CHECKING:
    from typing import Self

    from moe_core.contract.facts import Facts


class Condition(Frozen):
    """A statement about one fact."""

    fact: str
    test: Predicate

    @model_validator(mode="after")
    def _is_a_fact(self) -> Self:
        if not is_fact_name(self.fact):
            raise ValueError(f"{self.fact!r} is no fact; see moe_core.contract.facts")
        return self

    def holds(self, facts: Facts) -> bool | None:
        """Whether it holds; ``None`` when the fact, or what it is compared with, is unknown."""
        found = facts[self.fact]
        return None if found is None else self.test.holds(found, facts)

    def __str__(self) -> str:
        return f"{self.fact}: {self.test.needed()}"


class Requirement(Condition):
    """A statement that must hold, or the candidate is refused with `reason`.

    It applies only when every condition of `when` holds and not every condition of `unless` does. Where that is
    unknown, or the statement is, the requirement abstains.
    """

    reason: MoERejectReason
    hint: str = ""
    """What to try; sizes that would be legal are computed when a report is explained."""
    fixable: FixableBy | None = None
    when: tuple[Condition, ...] = ()
    unless: tuple[Condition, ...] = ()

    @property
    def fixable_by(self) -> FixableBy:
        """Who can remove the cause."""
        return self.fixable or self.reason.usually_fixable_by

    @cached_property
    def needed(self) -> str:
        """What is needed, for people."""
        text = self.test.needed()
        if self.when:
            text += f" (when {' and '.join(map(str, self.when))})"
        if self.unless:
            text += f" (unless {' and '.join(map(str, self.unless))})"
        return text

    @property
    def facts(self) -> set[str]:
        """Every fact that the answer depends on."""
        named: set[str] = set()
        for condition in (self, *self.when, *self.unless):
            other = getattr(condition.test, "times", None) or getattr(condition.test, "fact", None)
            named |= {condition.fact} if other is None else {condition.fact, other}
        return named

    def met(self, facts: Facts) -> bool | None:
        """Whether the requirement is met, or does not apply; ``None`` when that is unknown."""
        holds = self.holds(facts)
        if holds or (not self.when and not self.unless):
            return holds
        applies = self._applies(facts)
        if applies is False:
            return True
        return holds if applies else None

    def _applies(self, facts: Facts) -> bool | None:
        applies = _all(self.when, facts)
        if applies is False or not self.unless:
            return applies
        exempt = _all(self.unless, facts)
        if exempt:
            return False
        return applies if exempt is False else None


def _all(conditions: tuple[Condition, ...], facts: Facts) -> bool | None:
    result: bool | None = True
    for condition in conditions:
        holds = condition.holds(facts)
        if holds is False:
            return False
        if holds is None:
            result = None
    return result
