"""The document of one candidate's findings: what failed first, with what to try."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moe_core.contract.predicate import show
from moe_core.explain.document import Document, Item, Row, Section, Span, Text, Tone, muted, name, words
from moe_core.explain.why import Finding, Verdict, Why

TITLES = {
    Verdict.FAILED: "failed",
    Verdict.UNKNOWN: "unknown here, so assumed to be met",
    Verdict.PASSED: "passed",
    Verdict.EXEMPT: "does not apply here",
}


def why_document(whys: Sequence[tuple[str, Why]]) -> Document:
    """One page for a candidate in one or several outcomes, each with its scope (``layers 3-60``)."""
    same: dict[Why, list[str]] = {}
    for scope, why in whys:
        same.setdefault(why, []).append(scope)
    several = len(same) > 1
    sections = [s for why, scopes in same.items() for s in _sections(why, "; ".join(scopes) if several else "")]
    return Document(whys[0][1].identity, tuple(sections))


def _sections(why: Why, scope: str) -> Iterator[Section]:
    tone = Tone.BAD if why.of(Verdict.FAILED) else Tone.GOOD
    rows = [Row("why", words(name(why.identity), ": ", Span(why.outcome, tone)))]
    if scope:
        rows.append(Row("for", words(scope)))
    rows.append(Row("is", words(why.title)))
    yield Section("", tuple(rows))
    for verdict, title in TITLES.items():
        findings = why.of(verdict)
        if findings:
            yield Section(f"{title} ({len(findings)})", tuple(map(_item, findings)))


def _item(finding: Finding) -> Item:
    text = f"{finding.fact}: found {show(finding.found)}, needed {finding.needed}"
    if finding.verdict is not Verdict.FAILED:
        return Item(words(text))
    return Item(words(Span(finding.reason.name, Tone.CODE), f" {text}"), tuple(_advice(finding)))


def _advice(finding: Finding) -> Iterator[Text]:
    if finding.hint:
        yield words(f"try: {finding.hint} ", muted(f"({finding.fixable_by})"))
    else:
        yield words(muted(f"fixable by: {finding.fixable_by}"))
    if finding.neighbours:
        yield words(f"legal here: {'; '.join(finding.neighbours)}")
