"""A document as plain text: no colour, and no line longer than the width unless a single word is."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import TextWrapper

from moe_core.explain.document import NO_BREAK, Block, Document, Item, Row, Table, Text, plain

LABEL = 9
"""Columns of a row's label with the space behind it."""


def as_text(document: Document, width: int = 80) -> str:
    """The document as lines of at most `width` columns, ending in a newline."""
    lines: list[str] = []
    for section in document.sections:
        if lines:
            lines.append("")
        if section.title:
            lines.append(section.title)
        indent = "  " if section.title else ""
        for block in section.blocks:
            lines += _block(block, indent, width)
    return "\n".join(line.rstrip() for line in lines).replace(NO_BREAK, " ") + "\n"


def _block(block: Block, indent: str, width: int) -> Iterator[str]:
    match block:
        case Row():
            yield from _wrapped(block.text, f"{indent}{block.label:<{LABEL}}", indent + " " * LABEL, width)
        case Item():
            yield from _wrapped(block.text, indent, indent + "  ", width)
            for detail in block.details:
                yield from _wrapped(detail, indent + "  ", indent + "  ", width)
        case Table():
            if block.fits(width - len(indent)):
                yield from _table(block, indent)
            else:
                for item in block.records():
                    yield from _block(item, indent, width)


def _wrapped(text: Text, first: str, rest: str, width: int) -> list[str]:
    wrapper = TextWrapper(
        width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return wrapper.wrap(plain(text)) or [first]


def _table(table: Table, indent: str) -> Iterator[str]:
    for row in (table.headings, *(tuple(map(plain, row)) for row in table.rows)):
        yield indent + "".join(f"{cell:<{width}}  " for cell, width in zip(row, table.widths, strict=True))
