"""Text, terminal and HTML are views of one document."""

import io
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from moe_core.explain import explain
from moe_core.explain.as_html import as_html
from moe_core.explain.as_rich import as_rich
from moe_core.explain.as_text import as_text
from moe_core.explain.document import NO_BREAK, Document, Item, Row, Section, Span, Table, Tone, muted, name, words
from moe_core.explain.matrix import support_sections

WORDS = st.lists(st.text("abc.<&>\"' ", max_size=12), max_size=20).map(" ".join)


def everything_in(document):
    """Every word of a document, in order of writing."""
    texts = []
    for section in document.sections:
        texts.append(section.title)
        for block in section.blocks:
            match block:
                case Row(label, text):
                    texts += [label, *(s.text for s in text)]
                case Item(text, details):
                    texts += [s.text for part in (text, *details) for s in part]
                case Table(headings, rows):
                    texts += [*headings, *(s.text for row in rows for cell in row for s in cell)]
    return " ".join(texts).replace(NO_BREAK, " ").split()


@pytest.fixture
def document(resolved, catalog):
    return explain(resolved(tp_size=8, backend="ALPHA")).plus(*support_sections(catalog))


def on_terminal(document, width, colour):
    colours = "standard" if colour else None
    console = Console(file=io.StringIO(), width=width, force_terminal=colour, color_system=colours, highlight=False)
    console.print(as_rich(document, width))
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_text_keeps_to_the_width(document, width):
    long = [line for line in as_text(document, width).splitlines() if len(line) > width and len(line.split()) > 1]
    assert long == []


def test_text_has_no_trailing_space_and_no_special_space(document):
    text = as_text(document)
    assert not re.search(r"[ \t]+$", text, re.MULTILINE)
    assert NO_BREAK not in text
    assert text.isascii()


@pytest.mark.parametrize("width", [80, 250])
def test_a_terminal_without_colour_shows_the_words_of_the_text(document, width):
    def squeezed(text):
        return re.sub(r"\s+", "", text)

    assert squeezed(on_terminal(document, width, colour=False)) == squeezed(as_text(document, width))


def test_a_terminal_shows_colours_and_they_add_no_word(document):
    coloured = on_terminal(document, 80, colour=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == on_terminal(document, 80, colour=False)


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.text = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open and "title" not in self.open:
            self.text.append(data)


def test_html_says_what_the_text_says(document):
    shown = "".join(Page(as_html(document)).text).replace(NO_BREAK, " ")
    missing = [word for word in everything_in(document) if word not in shown]
    assert missing == []


def test_html_is_well_formed_and_fetches_nothing(document):
    text = as_html(document)
    page = Page(text)
    assert page.open == []
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    assert not [attrs for _, attrs in page.tags if {"src", "href", "onload", "style"} & attrs.keys()]
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text


@given(text=WORDS, tone=st.sampled_from(Tone))
def test_html_escapes_every_word(text, tone):
    span = (Span(text, tone),)
    section = Section(text, (Row(text, span), Item(span, (span,)), Table((text,), ((span,),))))
    page = Page(as_html(Document(text, (section,))))
    assert page.open == []
    tags = {tag for tag, _ in page.tags}
    assert tags <= {
        "html", "head", "meta", "title", "style", "body", "h1", "h2", "section", "dl", "dt", "dd", "ul", "li", "div",
        "table", "tr", "th", "td", "span",
    }  # fmt: skip
    assert "".join(page.text).count(text) >= 5


def test_hostile_plugin_names_stay_text(resolved, catalog):
    section = Section("x", (Item(words("<script>alert('&')</script>")),))
    text = as_html(Document("<b>title</b>", (section,)))
    assert "<script" not in text
    assert "<b>" not in text
    assert "&lt;script&gt;alert(&#x27;&amp;&#x27;)&lt;/script&gt;" in text


def test_a_table_that_does_not_fit_becomes_records():
    table = Table(("what", "needs"), ((words(name("a.b.c.any")), words(muted("x" * 40))),))
    document = Document("t", (Section("", (table,)),))
    assert as_text(document, 80).splitlines()[0].split() == ["what", "needs"]
    assert as_text(document, 48) == f"a.b.c.any\n  needs {'x' * 40}\n"
