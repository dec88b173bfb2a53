"""A plugin under test: found by its specification, asked like the resolver asks it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.catalog import Catalog
from moe_core.contract.eligibility import MoEEligibility
from moe_core.contract.tuning import Tuning
from moe_core.registry import Plugin, PluginContractError, Registry, load_registry
from moe_core.resolve import can_implement
from moe_core.testing.question import Question


@dataclass(frozen=True)
class Subject:
    """One plugin that keeps the contract."""

    plugin: Plugin

    @property
    def candidate(self) -> MoECandidate:
        """What it declares."""
        return self.plugin.entry.candidate

    @property
    def registry(self) -> Registry:
        """A registry of this plugin alone."""
        return Registry((self.plugin,), Catalog([self.plugin.entry]))

    def ask(self, question: Question) -> MoEEligibility:
        """Its own answer, whatever that raises; ``TypeError`` for an answer that is none."""
        own = self.plugin.entry.can_implement
        answer = can_implement(self.candidate, *question) if own is None else own(*question)
        if not isinstance(answer, MoEEligibility):
            raise TypeError(f"can_implement returned {type(answer).__name__}, not MoEEligibility")
        return answer

    @property
    def is_tuned(self) -> bool:
        """Whether it says what it expects of its candidate."""
        return self.plugin.entry.moe_tuning is not None

    def tune(self, question: Question, tokens: int) -> Tuning | None:
        """What it expects, whatever that raises; ``TypeError`` for what is no tuning."""
        own = self.plugin.entry.moe_tuning
        tuning = None if own is None else own(*question, tokens)
        if not isinstance(tuning, Tuning | None):
            raise TypeError(f"moe_tuning returned {type(tuning).__name__}, not Tuning or None")
        return tuning

    def __str__(self) -> str:
        return self.candidate.identity


def load_subjects(spec: str) -> tuple[Subject, ...]:
    """The plugins that `spec` names as an entry point does: ``package.module``, or ``package.module:NAME``.

    Raises :class:`PluginContractError` with every plugin that breaks the contract, or whatever the import raised.
    """
    module, _, path = spec.partition(":")
    found: object = import_module(module)
    for name in path.split(".") if path else ():
        found = getattr(found, name)
    registry = load_registry(plugins=found if isinstance(found, list | tuple) else (found,), points=())
    if registry.catalog.plugin_errors:
        raise PluginContractError("\n".join(f"{e.plugin}: {e.error}" for e in registry.catalog.plugin_errors))
    return tuple(Subject(plugin) for plugin in sorted(registry.plugins, key=lambda p: p.entry.candidate.identity))
