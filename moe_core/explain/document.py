"""What every view shows: rows, items and tables of words with a tone, free of any layout."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

NO_BREAK = "\xa0"
"""A space at which no view breaks a line."""


class Tone(StrEnum):
    """How words are meant; a view may colour them, and must stay readable when it does not."""

    PLAIN = "plain"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    MUTED = "muted"
    NAME = "name"
    """The identity of a candidate."""
    CODE = "code"
    """A reason code."""


@dataclass(frozen=True, slots=True)
class Span:
    """Words of one tone."""

    text: str
    tone: Tone = Tone.PLAIN


Text: TypeAlias = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A label of at most eight letters, and what there is to say about it."""

    label: str
    text: Text


@dataclass(frozen=True, slots=True)
class Item:
    """A statement, with details below it."""

    text: Text
    details: tuple[Text, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Cells under headings; the first names its row."""

    headings: tuple[str, ...]
    rows: tuple[tuple[Text, ...], ...]

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of text that each column of cells needs."""
        lines = [self.headings, *([plain(cell) for cell in row] for row in self.rows)]
        return tuple(max(len(line[column]) for line in lines) for column in range(len(self.headings)))

    def fits(self, width: int) -> bool:
        """Whether the table can stand on a page of `width` columns."""
        return sum(self.widths) + 2 * len(self.widths) <= width

    def records(self) -> tuple[Item, ...]:
        """The rows one by one, for a page that is too narrow for them side by side."""
        return tuple(
            Item(first, (joined(((muted(f"{heading} "), *cell) for heading, cell in named), "; "),))
            for first, *cells in self.rows
            if (named := list(zip(self.headings[1:], cells, strict=True)))
        )


Block: TypeAlias = Row | Item | Table


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a title; the opening section has none, so that the answer is the first line."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A page. The title heads an HTML page; a terminal starts with the first section."""

    title: str
    sections: tuple[Section, ...]

    def plus(self, *sections: Section) -> Document:
        """The page with more sections at its end."""
        return Document(self.title, (*self.sections, *sections))


def words(*parts: str | Span) -> Text:
    """Text of plain strings and toned spans."""
    return tuple(Span(part) if isinstance(part, str) else part for part in parts if part)


def plain(text: Text) -> str:
    """The words alone."""
    return "".join(span.text for span in text)


def joined(texts: Iterable[Text], separator: str = ", ") -> Text:
    """Texts one after the other."""
    parts = [span for text in texts for span in (Span(separator), *text)]
    return tuple(parts[1:])


def name(identity: str) -> Span:
    """A candidate's identity."""
    return Span(identity, Tone.NAME)


def muted(text: str) -> Span:
    """Words of lesser weight."""
    return Span(text, Tone.MUTED)
