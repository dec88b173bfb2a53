"""What ``moe doctor`` finds out: plugins, bans, and the variables of this process."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

from moe_core.contract.base import Frozen
from moe_core.contract.catalog import Catalog
from moe_core.contract.decision import PluginError
from moe_core.contract.reasons import MoERejectReason
from moe_core.environment.variables import FLAGS, VARIABLES, unknown_variables
from moe_core.registry import load_registry


class Distribution(Frozen):
    """An installed distribution that offers plugins."""

    name: str
    candidates: int
    run: int
    """Candidates with an adapter; the others are declared only."""


class Ban(Frozen):
    """A ban in force, and what it hits."""

    name: str
    hits: tuple[str, ...]


class Setting(Frozen):
    """An environment variable that takes part in selection, as it is set."""

    name: str
    value: str
    meaning: str


class Health(Frozen):
    """What the doctor found."""

    loaded: tuple[Distribution, ...]
    refused: tuple[PluginError, ...]
    bans: tuple[Ban, ...]
    settings: tuple[Setting, ...]
    unknown_variables: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every plugin loads or is banned, every ban hits something, and every variable is known."""
        broken = [error for error in self.refused if error.reason is not MoERejectReason.BANNED]
        return not broken and not self.unknown_variables and all(ban.hits for ban in self.bans)


def examine(bans: tuple[str, ...]) -> Health:
    """Load every plugin, and look at the variables of this process."""
    catalog = load_registry(bans).catalog
    total = Counter(entry.distribution or "unknown" for entry in catalog)
    run = Counter(entry.distribution or "unknown" for entry in catalog if entry.candidate.factory is not None)
    known = {**VARIABLES, **FLAGS}
    seen = [name for name in sorted(known) if name in os.environ]
    return Health(
        loaded=tuple(Distribution(name=name, candidates=total[name], run=run[name]) for name in sorted(total)),
        refused=catalog.plugin_errors,
        bans=tuple(Ban(name=ban, hits=tuple(_hits(ban, catalog))) for ban in bans),
        settings=tuple(Setting(name=name, value=os.environ[name], meaning=known[name]) for name in seen),
        unknown_variables=unknown_variables(os.environ),
    )


def _hits(ban: str, catalog: Catalog) -> Iterator[str]:
    name = ban.casefold()
    for entry in catalog:
        candidate = entry.candidate
        if name in (candidate.identity, candidate.family.casefold(), (entry.distribution or "").casefold()):
            yield candidate.identity
    for error in catalog.plugin_errors:
        if name in (error.plugin.casefold(), (error.distribution or "").casefold()):
            yield error.plugin
