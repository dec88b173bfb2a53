"""A document for a terminal, coloured by rich. Colour repeats what the words say, never more."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text as RichText

from moe_core.explain.as_text import LABEL
from moe_core.explain.document import NO_BREAK, Document, Item, Row, Section, Table, Text, Tone

STYLES = {
    Tone.PLAIN: "",
    Tone.GOOD: "bold green",
    Tone.WARN: "yellow",
    Tone.BAD: "bold red",
    Tone.MUTED: "bright_black",
    Tone.NAME: "cyan",
    Tone.CODE: "magenta",
}


def as_rich(document: Document, width: int) -> Group:
    """The document as one renderable, for a page of `width` columns."""
    parts = [part for section in document.sections for part in (RichText(), *_section(section, width))]
    return Group(*parts[1:])


def _section(section: Section, width: int) -> Iterator[RenderableType]:
    if section.title:
        yield RichText(section.title, style="bold underline")
    for block in section.blocks:
        match block:
            case Row():
                yield _row(block)
            case Item():
                yield from _item(block)
            case Table() if block.fits(width):
                yield _table(block)
            case Table():
                for record in block.records():
                    yield from _item(record)


def _row(row: Row) -> RichTable:
    grid = RichTable.grid()
    grid.add_column(style="bold", width=LABEL)
    grid.add_column()
    grid.add_row(row.label, _styled(row.text))
    return grid


def _item(item: Item) -> Iterator[RenderableType]:
    yield Padding(_styled(item.text), (0, 0, 0, 2))
    for detail in item.details:
        yield Padding(_styled(detail), (0, 0, 0, 4))


def _table(table: Table) -> RichTable:
    shown = RichTable(*table.headings, box=None, pad_edge=False, header_style="bold")
    for row in table.rows:
        shown.add_row(*map(_styled, row))
    return shown


def _styled(text: Text) -> RichText:
    return RichText.assemble(*((span.text.replace(NO_BREAK, " "), STYLES[span.tone]) for span in text))
