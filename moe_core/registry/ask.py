"""The two hooks that are not part of a resolution: facts for the probe, notes for people."""

from __future__ import annotations

from collections.abc import Mapping

from moe_core.contract.environment import Scalar
from moe_core.contract.report import MoEResolutionReport
from moe_core.registry.loader import Registry


def plugin_facts(registry: Registry) -> tuple[tuple[str, Mapping[str, Scalar] | Exception], ...]:
    """Per plugin that looks at the machine: its prefix, and the facts or the error that it gave."""
    found: list[tuple[str, Mapping[str, Scalar] | Exception]] = []
    for plugin in registry.plugins:
        try:
            facts = plugin.call("moe_facts")
        # A stranger's probe: its failure means unknown facts, not a failed probe.
        except Exception as error:
            facts = error
        if facts is not None:
            found.append((plugin.entry.candidate.provider, facts))
    return tuple(found)


def notes_on(report: MoEResolutionReport, registry: Registry) -> tuple[str, ...]:
    """What plugins remark on a report, in order of identity; a plugin that raises is quoted instead."""
    notes: list[str] = []
    for plugin in sorted(registry.plugins, key=lambda p: p.entry.candidate.identity):
        try:
            note = plugin.call("moe_notes", report=report)
        except Exception as error:
            note = f"moe_notes raised {type(error).__name__}"
        if note:
            notes.append(f"{plugin.entry.candidate.identity}: {note}")
    return tuple(notes)
