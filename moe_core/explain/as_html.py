"""A document as one self-contained HTML file: no scripts, nothing fetched, light and dark."""

from __future__ import annotations

from html import escape
from itertools import groupby

from moe_core.explain.document import Block, Document, Item, Row, Section, Table, Text, Tone

STYLE = """
:root { color-scheme: light dark; --page: #fbfbfa; --card: #fff; --line: #e3e2de; --text: #23221f;
  --muted: #6c6a63; --good: #17692f; --warn: #8a5a00; --bad: #b3261e; --name: #0b5394; --code: #6b2f8a; }
@media (prefers-color-scheme: dark) { :root { --page: #161615; --card: #1e1e1c; --line: #35342f; --text: #e8e6df;
  --muted: #a09d92; --good: #7fd695; --warn: #e8b95b; --bad: #ff8a80; --name: #8cc2f5; --code: #d5a6ee; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1.25rem 4rem; background: var(--page); color: var(--text);
  font: 15px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 1.25rem; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 0 0 .6rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem 1.25rem;
  margin: 0 0 1rem; overflow-x: auto; }
dl { display: grid; grid-template-columns: 6rem 1fr; gap: .3rem 1rem; margin: 0; }
dt { color: var(--muted); } dd { margin: 0; overflow-wrap: anywhere; }
ul { margin: 0; padding: 0; list-style: none; }
li { padding: .35rem 0; border-top: 1px solid var(--line); overflow-wrap: anywhere; }
li:first-child { border-top: 0; } li > div { padding-left: 1.25rem; }
table { border-collapse: collapse; font-size: .9em; }
th, td { text-align: left; vertical-align: top; padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--muted); font-weight: 600; }
.good { color: var(--good); font-weight: 600; } .warn { color: var(--warn); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; } .muted { color: var(--muted); }
.name, .code, .good { font-family: ui-monospace, monospace; font-size: .92em; }
.name { color: var(--name); } .code { color: var(--code); }
"""


def as_html(document: Document) -> str:
    """The document as a page; every word of it is escaped."""
    title = escape(document.title)
    body = "\n".join(map(_section, document.sections))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n{body}\n</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    heading = f"<h2>{escape(section.title)}</h2>\n" if section.title else ""
    runs = groupby(section.blocks, key=type)
    return f"<section>\n{heading}{''.join(_run(list(blocks)) for _, blocks in runs)}</section>"


def _run(blocks: list[Block]) -> str:
    """Neighbouring blocks of one type: rows make one list of definitions, items one list."""
    inside = "\n".join(map(_block, blocks))
    tag = {Row: "dl", Item: "ul", Table: "div"}[type(blocks[0])]
    return f"<{tag}>\n{inside}\n</{tag}>\n"


def _block(block: Block) -> str:
    match block:
        case Row():
            return f"<dt>{escape(block.label)}</dt><dd>{_text(block.text)}</dd>"
        case Item():
            details = "".join(f"<div>{_text(detail)}</div>" for detail in block.details)
            return f"<li>{_text(block.text)}{details}</li>"
        case Table():
            heads = "".join(f"<th>{escape(heading)}</th>" for heading in block.headings)
            rows = "\n".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in block.rows)
            return f"<table>\n<tr>{heads}</tr>\n{rows}\n</table>"


def _text(text: Text) -> str:
    return "".join(
        escape(span.text) if span.tone is Tone.PLAIN else f'<span class="{span.tone}">{escape(span.text)}</span>'
        for span in text
    )
