"""Tables for docs/explanation/performance.md from a bench: ``python -m moe_core.measure.page bench.json``.

Between the page's markers everything is written anew; what people wrote around them stays.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import geometric_mean

from moe_core.contract.vocabulary import QuantAlgo
from moe_core.measure.public import Beside, PublicFigures
from moe_core.measure.results import Bench, Cell, Role, Row
from moe_core.measure.view import number, short_name

START, END = "<!-- generated from the bench's JSON -->", "<!-- end of generated -->"
LOSS = 0.95
"""Ratio below which a cell is named."""


def main(arguments: list[str] | None = None) -> None:
    """Write the tables, and the plot when asked for, or print the tables."""
    parser = argparse.ArgumentParser(prog="python -m moe_core.measure.page", description="Tables of a bench.")
    parser.add_argument("bench", metavar="BENCH", help="what moe bench --save wrote")
    parser.add_argument("--public", metavar="FILE", help="public figures to compare with")
    parser.add_argument("--into", metavar="PAGE", help="the page whose generated part is written anew")
    parser.add_argument("--plot", metavar="SVG", help="draw latency against tokens; needs matplotlib")
    options = parser.parse_args(arguments)
    bench = Bench.from_json(Path(options.bench).read_bytes())
    public = PublicFigures.load(options.public) if options.public else PublicFigures(source="")
    text = page(bench, public)
    if options.plot:
        from moe_core.measure.plot import plot

        plot(bench, public, options.plot)
        place = os.path.relpath(options.plot, Path(options.into).parent if options.into else ".")
        text = f"![latency against tokens]({place})\n\n{text}"
    if options.into:
        Path(options.into).write_text(renewed(Path(options.into).read_text(encoding="utf-8"), text), encoding="utf-8")
    else:
        sys.stdout.write(text)


def renewed(before: str, text: str) -> str:
    """A page with `text` between its markers; raises ``ValueError`` when they are not there."""
    head, start, rest = before.partition(START)
    _, end, tail = rest.partition(END)
    if not start or not end:
        raise ValueError(f"found no generated part, needed the lines {START!r} and {END!r}")
    return f"{head}{START}\n\n{text}\n{END}{tail}"


def page(bench: Bench, public: PublicFigures) -> str:
    """Machine, summary, and for each shape the experts alone and what starts from logits."""
    beside = public.beside(bench.shapes)
    parts = ["\n".join(_machine(bench)), "\n".join(_summary(bench, beside))]
    for shape in bench.shapes:
        cells = bench.of_shape(shape.name)
        if cells:
            parts += [f"### {shape.name}", _table(_alone(cells, beside))]
        if any(cell.of_role(Role.ROUTING) for cell in cells):
            parts.append(_table(_from_logits(cells)))
    if public.figures:
        parts += ["## Public figures", public.source, _table(_public(public))]
    return "\n\n".join(parts) + "\n"


def _machine(bench: Bench) -> Iterator[str]:
    environment, ceilings = bench.environment, bench.ceilings
    packages = [f"{p} {v}" for p in ("torch", "triton", "transformers") if (v := environment.package_version(p))]
    driver = f"driver {environment.driver_version}" if environment.driver_version else ""
    yield f"Machine: {', '.join(filter(None, (environment.device_name or 'cpu', driver, *packages)))}."
    rates = {ceilings.tflop_s(shape.problem.quant or QuantAlgo.NONE) for shape in bench.shapes}
    fp8 = f", fp8 {ceilings.fp8_tflop_s:.0f} TFLOP/s" if ceilings.fp8_tflop_s in rates else ""
    yield (
        f"Floors by read {ceilings.read_gb_s:.0f} GB/s and bf16 {ceilings.bf16_tflop_s:.0f} TFLOP/s{fp8} "
        f"({ceilings.source})."
    )
    if (own := bench.measured_ceilings) is not None:
        yield f"torch itself reached {own.read_gb_s:.0f} GB/s and {own.bf16_tflop_s:.0f} TFLOP/s in this run."
    yield f"Routing {bench.routing}, seed {bench.seed}."
    yield "Times are medians in microseconds: of CUDA graph replays, or eager where nothing was captured."
    if bench.rest:
        yield f"Before each replay of over a millisecond the device was idle for {bench.rest:g} s."


def _summary(bench: Bench, public: Beside) -> Iterator[str]:
    yield "| shape | cells | vs best peer of the run, geometric mean | lowest | vs public, geometric mean | lowest |"
    yield "| --- | --- | --- | --- | --- | --- |"
    everything: tuple[list[float], list[float]] = ([], [])
    for shape in bench.shapes:
        cells = bench.of_shape(shape.name)
        ratios = [r for cell in cells if (r := _vs_peer(cell)) is not None]
        others = [r for cell in cells if (r := _vs_public(cell, public)) is not None]
        yield _row(shape.name, str(len(cells)), *_mean_and_least(ratios), *_mean_and_least(others))
        everything[0].extend(ratios)
        everything[1].extend(others)
    yield _row("all", str(len(bench.cells)), *_mean_and_least(everything[0]), *_mean_and_least(everything[1]))
    yield ""
    lost = [f"{c.shape} at {c.tokens}" for c in bench.cells if min(_vs_peer(c) or 1, _vs_public(c, public) or 1) < LOSS]
    yield f"Cells below {LOSS}: {', '.join(lost) or 'none'}."
    if wrong := [f"{row.name} ({cell.shape}, {cell.tokens} tokens)" for cell, row in bench.wrong()]:
        yield f"Wrong answers, which have no ratio: {', '.join(wrong)}."


def _mean_and_least(ratios: list[float]) -> tuple[str, str]:
    return (_times(geometric_mean(ratios)), _times(min(ratios))) if ratios else ("", "")


def _alone(cells: Iterable[Cell], public: Beside) -> Iterator[tuple[str, ...]]:
    yield (
        "tokens", "experts", "floor us", "ours", "us", "p10-p90", "floor share", "eager us",
        "best peer", "us", "vs peer", "public", "us", "vs public",
    )  # fmt: skip
    for cell in cells:
        ours, figure = cell.best(Role.CANDIDATE), public.get((cell.shape, cell.tokens))
        peer = cell.best(Role.PEER) or cell.best(Role.ORIENTATION)
        mine = ("", "", "", "", "")
        if ours is not None and ours.timing is not None:
            mine = (
                short_name(ours.name),
                f"**{number(ours.timing.median)}**",
                f"{number(ours.timing.p10)}-{number(ours.timing.p90)}",
                f"{cell.share(ours) or 0:.0%}",
                "" if ours.eager is None else number(ours.eager.median),
            )
        yield (
            str(cell.tokens), f"{cell.floor.experts:.4g}", number(cell.floor.microseconds), *mine,
            "" if peer is None else short_name(peer.name), "" if peer is None else number(peer.microseconds or 0),
            _times(_vs_peer(cell)),
            "" if figure is None else figure.kernel, "" if figure is None else number(figure.microseconds),
            _times(_vs_public(cell, public)),
        )  # fmt: skip


def _from_logits(cells: Iterable[Cell]) -> Iterator[tuple[str, ...]]:
    yield "tokens", "routing", "us", "eager us", "whole layer from logits", "us", "eager us"
    for cell in cells:
        yield (str(cell.tokens), *_named(cell.best(Role.ROUTING)), *_named(cell.best(Role.LAYER)))


def _named(row: Row | None) -> tuple[str, str, str]:
    """Name, time and the host's time."""
    if row is None:
        return "", "", ""
    return short_name(row.name), number(row.microseconds or 0), "" if row.eager is None else number(row.eager.median)


def _public(public: PublicFigures) -> Iterator[tuple[str, ...]]:
    formats = tuple(dict.fromkeys(figure.format for figure in public.figures))
    yield ("shape", "tokens", *(cell for format_ in formats for cell in (format_, "us")))
    for shape, tokens in dict.fromkeys((figure.shape, figure.tokens) for figure in public.figures):
        found = [public.best(shape, tokens, format_) for format_ in formats]
        named = (("", "") if f is None else (f.kernel, number(f.microseconds)) for f in found)
        yield (shape, str(tokens), *(cell for pair in named for cell in pair))


def _vs_peer(cell: Cell) -> float | None:
    ours = cell.best(Role.CANDIDATE)
    return None if ours is None else cell.ratio(ours)


def _vs_public(cell: Cell, public: Beside) -> float | None:
    ours, figure = cell.best(Role.CANDIDATE), public.get((cell.shape, cell.tokens))
    return None if ours is None or figure is None else figure.microseconds / (ours.microseconds or 1)


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x"


def _table(rows: Iterable[tuple[str, ...]]) -> str:
    headings, *cells = rows
    return "\n".join([_row(*headings), _row(*["---"] * len(headings)), *(_row(*row) for row in cells)])


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
