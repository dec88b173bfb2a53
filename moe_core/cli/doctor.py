"""``moe doctor``: plugins, bans and environment variables; what is refused, idle or misspelt, and why."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from moe_core.cli import options as opt
from moe_core.cli.health import Ban, Health, examine
from moe_core.cli.output import show, show_json
from moe_core.explain.document import Document, Item, Row, Section, Span, Text, Tone, words
from moe_core.explain.phrases import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--ban", action="append", default=[], metavar="NAME", help="identity, family or distribution")


def run(options: argparse.Namespace) -> int:
    """Examine; 0 when healthy."""
    health = examine(opt.bans(options))
    if options.json:
        show_json(health.to_json())
    else:
        show(Document("doctor", tuple(s for s in _sections(health) if s.blocks)))
    return 0 if health.ok else 1


def _sections(health: Health) -> Iterator[Section]:
    verdict = Span("healthy", Tone.GOOD) if health.ok else Span("something is wrong", Tone.BAD)
    yield Section("", (Row("doctor", words(verdict)),))
    for title, texts in (
        ("loaded", [_loaded(d.name, d.candidates, d.run) for d in health.loaded]),
        ("refused", [words(Span(e.plugin, Tone.BAD), f" of {e.distribution}: {e.error}") for e in health.refused]),
        ("bans in force", [_ban(ban) for ban in health.bans]),
        ("variables", [words(f"{s.name}={s.value}  {s.meaning}") for s in health.settings]),
        ("unknown variables", [words(Span(text, Tone.WARN)) for text in health.unknown_variables]),
    ):
        yield Section(title, tuple(map(Item, texts)))


def _loaded(name: str, candidates: int, run: int) -> Text:
    return words(f"{name}: {counted(candidates, 'candidate')}, {run} with an adapter")


def _ban(ban: Ban) -> Text:
    if not ban.hits:
        return words(ban.name, ": ", Span("matches no candidate", Tone.WARN))
    return words(f"{ban.name}: {', '.join(ban.hits)}")
