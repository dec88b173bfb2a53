"""Facts from outside: what plugins found on the machine, and what candidates want looked at."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from moe_core.contract.environment import PluginFact, Scalar
from moe_core.contract.gates import gates_of

if TYPE_CHECKING:
    from moe_core.contract.catalog import Catalog

Found = tuple[str, Mapping[str, Scalar] | Exception]
"""A plugin's prefix, with what its ``moe_facts()`` returned or raised."""


def checked_facts(found: Iterable[Found]) -> tuple[tuple[PluginFact, ...], tuple[str, ...]]:
    """The facts that keep the rules, and a sentence for each that does not.

    A fact is a bool, int, finite float or str under ``<prefix>.``; ``None`` is unknown, so no fact. What two plugins
    of one prefix contradict each other about is unknown.
    """
    kept: dict[str, Scalar] = {}
    contradicted: set[str] = set()
    errors: list[str] = []
    for prefix, facts in found:
        if not isinstance(facts, Mapping):
            errors.append(f"moe_facts of {prefix}: {_went_wrong(facts)}")
            continue
        for name, value in facts.items():
            error = _wrong(prefix, name, value)
            if error is None and value is None:
                continue
            if error is None and name in kept and _differ(kept[name], value):
                contradicted.add(name)
                error = f"found {value!r}, and another plugin of {prefix} found {kept[name]!r}: unknown"
            if error is not None:
                errors.append(f"moe_facts of {prefix}: {name!r}: {error}")
            else:
                kept[name] = value
    known = (PluginFact(name=n, value=v) for n, v in sorted(kept.items()) if n not in contradicted)
    return tuple(known), tuple(errors)


def mentioned_facts(catalog: Catalog) -> tuple[str, ...]:
    """The ``package:``, ``feature:`` and ``flag:`` facts that candidates have requirements on, sorted."""
    named = {fact for candidate in catalog.candidates for gate in gates_of(candidate) for fact in gate.facts}
    return tuple(sorted(fact for fact in named if fact.startswith(("package:", "feature:", "flag:"))))


def _wrong(prefix: str, name: object, value: object) -> str | None:
    if not isinstance(name, str) or not name.startswith(f"{prefix}.") or name == f"{prefix}.":
        return f"a plugin's facts are named {prefix}.<fact>"
    if value is not None and type(value) not in (bool, int, float, str):
        return f"found a {type(value).__name__}; a fact is a bool, int, float or str"
    if isinstance(value, float) and not math.isfinite(value):
        return f"found {value}; a fact is finite"
    return None


def _differ(one: Scalar, other: object) -> bool:
    return (type(one), one) != (type(other), other)


def _went_wrong(result: object) -> str:
    if isinstance(result, Exception):
        return f"raised {type(result).__name__}: {(str(result).splitlines() or [''])[0]}"
    return f"returned {type(result).__name__}, not a mapping of names to scalars"
