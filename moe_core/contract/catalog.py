"""The candidates that a resolution asks: one immutable object, whose hash is computed once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.decision import PluginError

Ask = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A candidate with where it comes from, and how it answers."""

    candidate: MoECandidate
    distribution: str | None = None
    can_implement: Ask | None = None
    """The plugin's own ``can_implement(problem, deployment)``; ``None``: the evaluation of its declaration."""
    moe_tuning: Ask | None = None
    """The plugin's ``moe_tuning(problem, deployment, tokens)``; ``None``: it has none."""


class Catalog:
    """Candidates in order of identity, whatever the order of discovery, and the plugins that gave none."""

    def __init__(self, entries: Iterable[CatalogEntry], plugin_errors: Iterable[PluginError] = ()) -> None:
        self.entries = tuple(sorted(entries, key=lambda e: e.candidate.identity))
        self.plugin_errors = tuple(sorted(plugin_errors, key=lambda e: (e.plugin, e.error)))
        self._entry_of = {e.candidate.identity: e for e in self.entries}
        if len(self._entry_of) != len(self.entries):
            identities = [e.candidate.identity for e in self.entries]
            twice = sorted({i for i in identities if identities.count(i) > 1})
            raise ValueError(f"a catalog holds each identity once; twice: {', '.join(twice)}")
        self._hash = hash((self.entries, self.plugin_errors))

    @classmethod
    def of(cls, candidates: Iterable[MoECandidate]) -> Catalog:
        """A catalog of bare declarations."""
        return cls(CatalogEntry(candidate) for candidate in candidates)

    @cached_property
    def candidates(self) -> tuple[MoECandidate, ...]:
        """Every candidate, in order of identity."""
        return tuple(e.candidate for e in self.entries)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of what every candidate declares and of what could not be loaded."""
        parts = [e.candidate.model_dump_json() for e in self.entries]
        parts += [e.model_dump_json() for e in self.plugin_errors]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    @cached_property
    def families(self) -> dict[str, tuple[MoECandidate, ...]]:
        """Members of each family, in order of identity."""
        found: dict[str, list[MoECandidate]] = {}
        for candidate in self.candidates:
            found.setdefault(candidate.family, []).append(candidate)
        return {family: tuple(members) for family, members in found.items()}

    def get(self, identity: str) -> MoECandidate:
        """The candidate of an identity; ``KeyError`` with close matches when there is none."""
        entry = self._entry_of.get(identity)
        if entry is None:
            from difflib import get_close_matches

            close = get_close_matches(identity, self._entry_of, n=3)
            raise KeyError(
                f"no candidate {identity!r} is registered"
                + (f"; did you mean {' or '.join(close)}?" if close else "; `moe candidates` lists them")
            )
        return entry.candidate

    def __contains__(self, identity: str) -> bool:
        return identity in self._entry_of

    def __iter__(self) -> Iterator[CatalogEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Catalog):
            return NotImplemented
        return self.entries == other.entries and self.plugin_errors == other.plugin_errors

    def __repr__(self) -> str:
        return f"<Catalog of {len(self.entries)} candidates, {len(self.plugin_errors)} plugin errors>"
