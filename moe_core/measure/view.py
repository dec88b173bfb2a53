"""Results as a page for a terminal: candidates side by side, fastest first. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator

from moe_core.contract.evidence import Evidence
from moe_core.explain.document import Document, Row, Section, Span, Table, Text, Tone, muted, name, words
from moe_core.explain.phrases import duration
from moe_core.measure.results import Bench, Cell, Mode, Role
from moe_core.measure.results import Row as Result

HEADINGS = ("experts alone", "us", "p10-p90", "eager", "floor", "vs peer")
FROM_LOGITS = ("from logits", "us", "p10-p90", "eager")


def bench_document(bench: Bench) -> Document:
    """All cells, in the order in which they were measured, under what they were measured on."""
    sections = [cell_section(cell) for cell in bench.cells]
    return Document("moe bench", (Section("", tuple(_head(bench))), *sections))


def cell_section(cell: Cell) -> Section:
    """One cell: those that ran as a table, the reasons of the others below it."""
    floor = cell.floor
    title = (
        f"{cell.shape}, {cell.tokens} tokens: floor {duration(floor.microseconds)} by {floor.bound}, "
        f"{floor.experts:.4g} experts"
    )
    alone = [row for role in (Role.CANDIDATE, Role.PEER, Role.ORIENTATION) for row in cell.of_role(role)]
    routed = [row for role in (Role.ROUTING, Role.LAYER) for row in cell.of_role(role)]
    tables = (
        Table(headings, tuple(_cells(cell, row)[: len(headings)] for row in rows if row.timing is not None))
        for headings, rows in ((HEADINGS, alone), (FROM_LOGITS, routed))
    )
    reasons = (
        Row(_short(row), words(name(row.name), f": {row.reason or row.verdict}"))
        for row in (*alone, *routed)
        if row.reason or row.is_wrong
    )
    return Section(title, (*(table for table in tables if table.rows), *reasons))


def progress_line(cell: Cell) -> str:
    """What is new: the fastest candidate and the fastest peer, each beside the floor."""
    found = [f"{short_name(best.name)} {number(best.microseconds or 0)}" for best in _fastest(cell)]
    floor = f"floor {number(cell.floor.microseconds)} us"
    return f"{cell.shape}, {cell.tokens} tokens: {', '.join([floor, *found])}"


def _fastest(cell: Cell) -> Iterator[Result]:
    for role in (Role.CANDIDATE, Role.PEER):
        if (best := cell.best(role)) is not None:
            yield best


def _head(bench: Bench) -> Iterator[Row]:
    environment, ceilings = bench.environment, bench.ceilings
    versions = [f"{p} {v}" for p in ("torch", "triton", "transformers") if (v := environment.package_version(p))]
    driver = f"driver {environment.driver_version}" if environment.driver_version else ""
    yield Row("machine", words(", ".join(filter(None, (environment.device_name or "cpu", *versions, driver)))))
    rates = f"read {ceilings.read_gb_s:.0f} GB/s, bf16 {ceilings.bf16_tflop_s:.3g} TFLOP/s, {ceilings.source}"
    yield Row("ceilings", words(rates))
    if (own := bench.measured_ceilings) is not None and own != ceilings:
        yield Row("this run", words(f"read {own.read_gb_s:.0f} GB/s, bf16 {own.bf16_tflop_s:.3g} TFLOP/s, by torch"))
    yield Row("tokens", words(f"{bench.routing} routing, seed {bench.seed}"))


def _cells(cell: Cell, row: Result) -> tuple[Text, ...]:
    timing = row.timing
    assert timing is not None  # rows without one are no part of the table
    share, ratio = cell.share(row), cell.ratio(row)
    tone = Tone.GOOD if ratio is not None and ratio >= 1 else Tone.PLAIN
    return (
        words(name(short_name(row.name)), muted(" peer") if row.role is Role.PEER else ""),
        words(number(timing.median) if timing.mode is Mode.GRAPH else "-"),
        words(f"{number(timing.p10)}-{number(timing.p90)}"),
        words("" if row.eager is None else number(row.eager.median)),
        words("" if share is None else f"{share:.0%}"),
        words(Span("wrong", Tone.BAD) if row.is_wrong else "" if ratio is None else Span(f"{ratio:.2f}x", tone)),
    )


def _short(row: Result) -> str:
    return "wrong" if row.is_wrong else "note" if row.timing is not None else "not run"


def short_name(of_row: str) -> str:
    """Technique and kernel of each identity in the name of a row."""
    parts = (part.split(".") for part in of_row.split(" + "))
    return " + ".join(".".join(part[1:3] if len(part) == 4 else part) for part in parts)


def number(microseconds: float) -> str:
    """Microseconds in as many digits as are worth reading."""
    return f"{microseconds:.1f}" if microseconds < 100 else f"{microseconds:.0f}"


def evidence_document(evidence: Evidence) -> Document:
    """Measured times as a table for each problem: a column for each number of tokens, fastest candidates first."""
    sections = []
    for problem in dict.fromkeys(m.problem for m in evidence.measurements):
        those = [m for m in evidence.measurements if m.problem == problem]
        counts = sorted({m.tokens for m in those})
        times = {(m.identity, m.tokens): m.microseconds for m in those}
        best = {tokens: min(m.microseconds for m in those if m.tokens == tokens) for tokens in counts}
        rows = tuple(
            (words(name(short_name(identity))), *(_time(times.get((identity, t)), best[t]) for t in counts))
            for identity in dict.fromkeys(m.identity for m in sorted(those, key=lambda m: m.microseconds))
        )
        title = f"problem {problem}: us at tokens per rank"
        sections.append(Section(title, (Table(("", *map(str, counts)), rows),)))
    return Document("moe tune", tuple(sections) or (Section("", (Row("nothing", words("no answer was right")),)),))


def _time(microseconds: float | None, best: float) -> Text:
    if microseconds is None:
        return ()
    return words(Span(number(microseconds), Tone.GOOD if microseconds == best else Tone.PLAIN))
