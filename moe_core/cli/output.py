"""Where a command's answer goes: a terminal in colour, a pipe as plain text, a script as JSON."""

from __future__ import annotations

import json
import os
import sys
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moe_core.explain.document import Document

WIDEST = 110
"""Columns beyond which lines of prose become hard to read."""


def show(document: Document) -> None:
    """Print a document, coloured by rich on a terminal; https://no-color.org is respected."""
    width = min(get_terminal_size().columns, WIDEST)
    if not _colours():
        from moe_core.explain.as_text import as_text

        sys.stdout.write(as_text(document, width))
        return
    # rich is loaded only where it shows: it costs as much as a third of a resolution's imports.
    from rich.console import Console

    from moe_core.explain.as_rich import as_rich

    Console(width=width, highlight=False).print(as_rich(document, width))


def show_json(value: Any) -> None:
    """Print JSON: text as it is, anything else dumped."""
    sys.stdout.write((value if isinstance(value, str) else json.dumps(value, indent=2)) + "\n")


def say(message: str) -> None:
    """A remark beside the answer, on standard error."""
    sys.stderr.write(f"moe: {message}\n")


def _colours() -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")
