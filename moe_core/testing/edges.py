"""Values on both sides of a predicate, next to its limit."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, get_args

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.facts import ABSENT, UNSET, Facts, FactValue
from moe_core.contract.predicate import (
    AtLeast,
    AtMost,
    Equals,
    Includes,
    Installed,
    MultipleOf,
    NoneOf,
    OneOf,
    Predicate,
    SameAs,
    SubsetOf,
)
from moe_core.contract.problem import ConstantName, MoEProblem
from moe_core.contract.vocabulary import Word

CONSTANT_NAMES: Final[tuple[str, ...]] = get_args(ConstantName)


class Edges(NamedTuple):
    """Values of a fact that meet a predicate, and values that just do not; both next to the limit, best first."""

    inside: tuple[FactValue, ...]
    outside: tuple[FactValue, ...]


def edges_of(test: Predicate, fact: str, facts: Facts) -> Edges:
    """Values of `fact` around the limit of `test`, where `facts` give what it is compared with.

    They are proposals: some may be values that no model of the contract takes.
    """
    match test:
        case Equals():
            return Edges((test.value,), _others(fact, [test.value]))
        case OneOf():
            return Edges(test.values, _others(fact, test.values))
        case NoneOf():
            return Edges(_others(fact, test.values), test.values)
        case SameAs():
            other = facts[test.fact]
            return Edges(() if other is None else (other,), () if other is None else _others(fact, [other]))
        case SubsetOf():
            return _subset_edges(test.values)
        case Includes():
            return Edges((test.values,), tuple(_without(test.values, v) for v in test.values))
        case Installed():
            return _version_edges(test)
        case AtLeast() | AtMost() | MultipleOf():
            return _number_edges(test, facts[fact], test.bound(facts))


def members_of(fact: str) -> tuple[Word, ...]:
    """The closed vocabulary of a fact that is a field; empty where it has none."""
    for model in (MoEProblem, MoEDeployment, MoEEnvironment):
        field = model.model_fields.get(fact)
        if field is not None:
            kinds = (field.annotation, *get_args(field.annotation))
            return next((tuple(k) for k in kinds if isinstance(k, type) and issubclass(k, Word)), ())
    return ()


def _others(fact: str, taken: Iterable[Any]) -> tuple[FactValue, ...]:
    """Values next to those that are `taken`, and not among them."""
    values = list(taken)
    near: list[FactValue] = [*members_of(fact)]
    for value in values:
        if isinstance(value, bool):
            near.append(not value)
        elif isinstance(value, int):
            near += [value + 1, value - 1]
        elif isinstance(value, float):
            near += [math.nextafter(value, math.inf), math.nextafter(value, -math.inf)]
        elif fact.startswith("flag:"):
            near += [UNSET, f"{value}0"]
        elif not near:
            near.append(f"{value}_other")
    return tuple(dict.fromkeys(v for v in near if v not in values))


def _subset_edges(values: tuple[str, ...]) -> Edges:
    foreign = [name for name in CONSTANT_NAMES if name not in values]
    inside = dict.fromkeys([(), *[(v,) for v in values], tuple(sorted(values))])
    return Edges(tuple(inside), tuple(tuple(sorted({*values, name})) for name in foreign))


def _without(values: tuple[str, ...], value: str) -> tuple[str, ...]:
    return tuple(v for v in values if v != value)


def _number_edges(test: AtLeast | AtMost | MultipleOf, found: FactValue, bound: float | None) -> Edges:
    if not bound:
        return Edges((), ())
    if isinstance(test, AtLeast):
        limit = math.ceil(bound)
        return Edges((limit, limit + 1), (limit - 1,))
    if isinstance(test, AtMost):
        limit = math.floor(bound)
        return Edges((limit, limit - 1), (limit + 1,))
    step = math.ceil(bound)
    near = max(int(found) // step, 1) * step if isinstance(found, int | float) else step
    outside = (near + 1, near - 1, near + step // 2) if step > 1 else ()
    return Edges((near, near + step, step), outside)


def _version_edges(test: Installed) -> Edges:
    inside: list[FactValue] = []
    outside: list[FactValue] = [ABSENT]
    if test.at_least is not None:
        inside.append(test.at_least)
        outside += _just_before(test.at_least)
    if test.below is not None:
        inside += _just_before(test.below)
        outside.append(test.below)
    return Edges(tuple(inside) or ("1.0",), tuple(outside))


def _just_before(version: str) -> list[str]:
    """The last release before `version`, if any: ``2.9.9999`` before ``2.10``, ``0.1.9999`` before ``0.2.0``."""
    from packaging.version import Version

    release = list(Version(version).release)
    while release and release[-1] == 0:
        release.pop()
    return [".".join(map(str, [*release[:-1], release[-1] - 1, 9999]))] if release else []
