"""The closed predicate language: ten words, each a value that answers yes, no or unknown about one fact."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from moe_core.contract.base import Frozen
from moe_core.contract.facts import ABSENT, FactValue, is_fact_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

    from moe_core.contract.facts import Facts

Plain: TypeAlias = bool | int | float | str


class Equals(Frozen):
    """The fact equals `value`."""

    word: Literal["equals"] = "equals"
    value: Plain

    def holds(self, found: FactValue, facts: Facts) -> bool | None:
        """Whether it holds; ``None`` when unknown."""
        return found == self.value

    def needed(self) -> str:
        """What is needed, for people."""
        return show(self.value)


class OneOf(Frozen):
    """The fact is one of `values`: an exact set."""

    word: Literal["one_of"] = "one_of"
    values: tuple[Plain, ...]

    def holds(self, found: FactValue, facts: Facts) -> bool | None:
        """Whether it holds; ``None`` when unknown."""
        return found in self.values

    def needed(self) -> str:
        """What is needed, for people."""
        return _join(self.values, "or")


class NoneOf(Frozen):
    """The fact is none of `values`."""

    word: Literal["none_of"] = "none_of"
    values: tuple[Plain, ...]

    def holds(self, found: FactValue, facts: Facts) -> bool | None:
        """Whether it holds; ``None`` when unknown."""
        return found not in self.values

    def needed(self) -> str:
        """What is needed, for people."""
        return f"not {_join(self.values, 'or')}"


class _Scaled(Frozen):
    """A number, times another fact when `times` names one."""

    value: int | float = 1
    times: str | None = None

    @model_validator(mode="after")
    def _times_is_a_fact(self) -> Self:
        if self.times is not None and not is_fact_name(self.times):
            raise ValueError(f"times names {self.times!r}, which is no fact")
        return self

    def bound(self, facts: Facts) -> int | float | None:
        """The number to compare with; ``None`` when the other fact is unknown."""
        if self.times is None:
            return self.value
        factor = facts[self.times]
        return self.value * factor if isinstance(factor, int | float) else None

    def bound_text(self) -> str:
        """The number to compare with, for people."""
        if self.times is None:
            return show(self.value)
        return self.times if self.value == 1 else f"{show(self.value)} x {self.times}"


class AtLeast(_Scaled):
    """The fact is at least `value` (times another fact)."""

    word: Literal["at_least"] = "at_least"

    def holds(self, found: FactValue, facts: Facts) -> bool | None:
        """Whether it holds; ``None`` when unknown."""
        bound = self.bound(facts)
        return None if bound is None or not isinstance(found, int | float) else found >= bound

    def needed(self) -> str:
        """What is needed, for people."""
        return f"at least {self.bound_text()}"


class AtMost(_Scaled):
    """The fact is at most `value` (times another fact)."""

    word: Literal["at_most"] = "at_most"

    def holds(self, found: FactValue, facts: Facts) -> bool | None:
        """Whether it holds; ``None`` when unknown."""
        bound = self.bound(facts)
        return None if bound is None or not isinstance(found, int | float) else found <= bound

    def needed(self) -> str:
        """What is needed, for people."""
        return f"at most {self.bound_text()}"


class MultipleOf(_Scaled):
    """The fact is a whole multiple of `value` (times another fact)."""

    word: Literal["multiple_of"] = "multiple_of"

    def holds(self, found: FactValue, facts: Facts) -> bool | None:
        """Whether it holds; ``None`` when unknown."""
        bound = self.bound(facts)
        return None if not bound or not isinstance(found, int | float) else found % bound == 0

    def needed(self) -> str:
        """What is needed, for people."""
        return f"a multiple of {self.bound_text()}"


class SameAs(Frozen):
    """The fact equals another fact."""

    word: Literal["same_as"] = "same_as"
    fact: str

    @model_validator(mode="after")
    def _is_a_fact(self) -> Self:
        if not is_fact_name(self.fact):
            raise ValueError(f"same_as names {self.fact!r}, which is no fact")
        return self

    def holds(self, found: FactValue, facts: Facts) -> bool | None:
        """Whether it holds; ``None`` when unknown."""
        other = facts[self.fact]
        return None if other is None else found == other

    def needed(self) -> str:
        """What is needed, for people."""
        return f"equal to {self.fact}"


class SubsetOf(Frozen):
    """Every name in the fact (a tuple of names) is among `values`."""

    word: Literal["subset_of"] = "subset_of"
    values: tuple[str, ...]

    def holds(self, found: FactValue, facts: Facts) -> bool | None:
        """Whether it holds; ``None`` when unknown."""
        return None if not isinstance(found, tuple) else set(found) <= set(self.values)

    def needed(self) -> str:
        """What is needed, for people."""
        return f"only {_join(self.values, 'and')}" if self.values else "none"


class Includes(Frozen):
    """The fact (a tuple of names) includes every one of `values`."""

    word: Literal["includes"] = "includes"
    values: tuple[str, ...]

    def holds(self, found: FactValue, facts: Facts) -> bool | None:
        """Whether it holds; ``None`` when unknown."""
        return None if not isinstance(found, tuple) else set(found) >= set(self.values)

    def needed(self) -> str:
        """What is needed, for people."""
        return _join(self.values, "and")


class Installed(Frozen):
    """A ``package:`` fact: installed, at a version in [`at_least`, `below`) where those are given (PEP 440)."""

    word: Literal["installed"] = "installed"
    at_least: str | None = None
    below: str | None = None

    def holds(self, found: FactValue, facts: Facts) -> bool | None:
        """Whether it holds; ``None`` when unknown."""
        if not isinstance(found, str) or found == ABSENT:
            return False
        return _version_within(found, self.at_least, self.below)

    def needed(self) -> str:
        """What is needed, for people."""
        limits = [f">= {self.at_least}"] * (self.at_least is not None) + [f"< {self.below}"] * (self.below is not None)
        return ", ".join(limits) or "installed"


Predicate: TypeAlias = Annotated[
    Equals | OneOf | NoneOf | AtLeast | AtMost | MultipleOf | SameAs | SubsetOf | Includes | Installed,
    Field(discriminator="word"),
]


def show(value: object) -> str:
    """A fact's value for people: yes/no for booleans, counts with thousands separators above 9999."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(show(v) for v in value) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int) and value > 99_999:
        return f"{value:,}"
    return str(value)


def _join(values: Iterable[object], last: str) -> str:
    shown = [show(v) for v in values]
    if len(shown) < 2:
        return "".join(shown)
    return f"{', '.join(shown[:-1])} {last} {shown[-1]}"


@lru_cache(maxsize=256)
def _version_within(found: str, at_least: str | None, below: str | None) -> bool | None:
    from packaging.version import InvalidVersion, Version

    try:
        version = Version(found)
    except InvalidVersion:
        return None
    # A local build such as 2.13.0+cpu, or a release candidate of the limit itself, counts as the release.
    release = Version(version.base_version)
    if at_least is not None and release < Version(at_least):
        return False
    return below is None or release < Version(below)
