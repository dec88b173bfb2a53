"""Our loader over the entry-point group: one broken plugin is a row in the report, never a crash."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from moe_core.contract.catalog import Ask, Catalog, CatalogEntry
from moe_core.contract.decision import PluginError
from moe_core.contract.reasons import MoERejectReason
from moe_core.registry.declared import Declared
from moe_core.registry.validate import validate

GROUP = "moe_core"
OURS = "moe-core"
"""The distribution whose identities stay when a stranger claims the same."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin that keeps the contract, with its catalog row."""

    name: str
    entry: CatalogEntry
    manager: pluggy.PluginManager | None = None

    def call(self, hook: str, **arguments: object) -> Any:
        """What the plugin's hook returns; ``None`` when it does not have the hook."""
        if self.manager is None:
            return None
        results = getattr(self.manager.hook, hook)(**arguments)
        return results[0] if results else None


@dataclass(frozen=True, slots=True)
class Registry:
    """What was loaded, what was refused, and the catalog that came of it."""

    plugins: tuple[Plugin, ...]
    catalog: Catalog


def load_registry(
    bans: Iterable[str] = (), *, plugins: Iterable[object] = (), points: Iterable[EntryPoint] | None = None
) -> Registry:
    """Load every plugin of the entry-point group `moe_core`, and `plugins` given directly.

    A banned distribution is not imported. `points` replaces the installed entry points (for tests).
    """
    banned = frozenset(_canonical(ban) for ban in bans)
    found: list[Plugin] = []
    errors: list[PluginError] = []
    for point in entry_points(group=GROUP) if points is None else points:
        distribution = point.dist.name if point.dist is not None else None
        if distribution is not None and _canonical(distribution) in banned:
            errors.append(
                PluginError(
                    plugin=point.name,
                    distribution=distribution,
                    reason=MoERejectReason.BANNED,
                    error="banned; not imported",
                )
            )
            continue
        for name, plugin in _objects(point, distribution, errors):
            _admit(name, plugin, distribution, found, errors)
    for plugin in plugins:
        _admit(_name_of(plugin), plugin, None, found, errors)
    kept = _without_duplicates(found, errors)
    return Registry(tuple(kept), Catalog([p.entry for p in kept], errors))


def load_catalog(bans: Iterable[str] = (), *, plugins: Iterable[object] = ()) -> Catalog:
    """The catalog of every installed plugin, and of `plugins` given directly."""
    return load_registry(bans, plugins=plugins).catalog


def _objects(point: EntryPoint, distribution: str | None, errors: list[PluginError]) -> Iterator[tuple[str, object]]:
    try:
        loaded = point.load()
    # Importing a stranger's module may raise anything, SystemExit included.
    except (Exception, SystemExit) as error:
        errors.append(_error(point.name, distribution, error))
        return
    if isinstance(loaded, list | tuple):
        for index, plugin in enumerate(loaded):
            yield f"{point.name}[{index}]", plugin
    else:
        yield point.name, loaded


def _admit(name: str, plugin: object, distribution: str | None, found: list[Plugin], errors: list[PluginError]) -> None:
    try:
        candidate, manager = validate(plugin)
    # The same: a stranger's moe_candidate may raise anything.
    except (Exception, SystemExit) as error:
        errors.append(_error(name, distribution, error))
        return
    # For plain declarations the resolver evaluates the requirements, on facts that it computes once for all.
    answer = _asker(manager, "can_implement", "problem", "deployment")
    if type(plugin) is Declared:
        tuning = plugin.moe_tuning if plugin.tuning else None
    else:
        tuning = _asker(manager, "moe_tuning", "problem", "deployment", "tokens")
    found.append(Plugin(name, CatalogEntry(candidate, distribution, answer, tuning), manager))


def _asker(manager: pluggy.PluginManager | None, hook: str, *names: str) -> Ask | None:
    """A function that calls a plugin's hook with arguments in the order of `names`; ``None`` if it has no such hook."""
    if manager is None or not getattr(manager.hook, hook).get_hookimpls():
        return None
    call = getattr(manager.hook, hook)

    def ask(*arguments: object) -> object:
        results = call(**dict(zip(names, arguments, strict=True)))
        return results[0] if results else None

    return ask


def _without_duplicates(found: list[Plugin], errors: list[PluginError]) -> list[Plugin]:
    claims: dict[str, list[Plugin]] = {}
    for plugin in found:
        claims.setdefault(plugin.entry.candidate.identity, []).append(plugin)
    kept: list[Plugin] = []
    for identity, claimants in claims.items():
        ours = [p for p in claimants if p.entry.distribution == OURS]
        keep = claimants if len(claimants) == 1 else ours if len(ours) == 1 else []
        kept += keep
        names = ", ".join(sorted(f"{p.entry.distribution or 'argument'}:{p.name}" for p in claimants))
        errors += [
            PluginError(plugin=p.name, distribution=p.entry.distribution,
                        error=f"identity {identity} is claimed by several plugins: {names}")
            for p in claimants if p not in keep
        ]  # fmt: skip
    return kept


def _error(name: str, distribution: str | None, error: BaseException) -> PluginError:
    first = (str(error).splitlines() or [""])[0]
    return PluginError(plugin=name, distribution=distribution, error=f"{type(error).__name__}: {_anonymous(first)}")


def _anonymous(text: str) -> str:
    """`text` without paths and addresses, so that reports of equal machines are equal."""
    text = re.sub(r"0x[0-9a-fA-F]+", "0x…", text)
    return re.sub(r"(?:[A-Za-z]:)?(?:[\\/][\w.\-+]+){2,}", "<path>", text)


def _name_of(plugin: object) -> str:
    return getattr(plugin, "__name__", None) or type(plugin).__name__


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).casefold()
