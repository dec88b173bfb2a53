"""Latency against tokens, a panel for each shape: ``python -m moe_core.measure.plot bench.json --out performance.svg``.

Needs matplotlib, from the extra ``bench``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from moe_core.measure.public import Beside, PublicFigures
from moe_core.measure.results import Bench, Cell, Role
from moe_core.measure.view import short_name

COLUMNS = 2
PANEL = (5.2, 3.6)
"""Inches."""
STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "moe_core", "font.size": 9}
"""Text stays text, and equal results give equal files."""


def main(arguments: list[str] | None = None) -> None:
    """Draw."""
    parser = argparse.ArgumentParser(prog="python -m moe_core.measure.plot", description="Latency against tokens.")
    parser.add_argument("bench", metavar="BENCH", help="what moe bench --save wrote")
    parser.add_argument("--public", metavar="FILE", help="public figures to draw beside")
    parser.add_argument("--out", metavar="SVG", required=True, help="the file to write")
    options = parser.parse_args(arguments)
    public = PublicFigures.load(options.public) if options.public else PublicFigures(source="")
    plot(Bench.from_json(Path(options.bench).read_bytes()), public, options.out)


def plot(bench: Bench, public: PublicFigures, path: str | Path) -> None:
    """Write one figure with all shapes that have cells."""
    panels = [(shape.name, cells) for shape in bench.shapes if (cells := bench.of_shape(shape.name))]
    beside = public.beside(bench.shapes)
    rows = -(-max(len(panels), 1) // COLUMNS)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PANEL[0] * COLUMNS, PANEL[1] * rows), layout="constrained")
        grid = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
        for axes, (name, cells) in zip(grid, panels, strict=False):
            _panel(axes, name, cells, beside)
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _panel(axes: Any, name: str, cells: tuple[Cell, ...], public: Beside) -> None:
    _line(axes, "floor", [(c.tokens, c.floor.microseconds) for c in cells], color="black", linestyle="--", linewidth=1)
    for peer in sorted({r.name for c in cells for r in (*c.of_role(Role.PEER), *c.of_role(Role.ORIENTATION))}):
        _line(axes, short_name(peer), _times_of(cells, peer), marker=".", linewidth=1, alpha=0.7)
    figures = [(c.tokens, f.microseconds) for c in cells if (f := public.get((c.shape, c.tokens)))]
    _line(axes, "fastest public kernel", figures, color="tab:red", marker="x", linewidth=1)
    ours = [(c.tokens, b.microseconds) for c in cells if (b := c.best(Role.CANDIDATE)) and b.microseconds]
    _line(axes, "moe_core's fastest", ours, color="tab:blue", marker="o", linewidth=2)
    axes.set(title=name, xlabel="tokens", ylabel="microseconds", xscale="log", yscale="log")
    axes.set_xticks([cell.tokens for cell in cells], [str(cell.tokens) for cell in cells])
    axes.minorticks_off()
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=7)


def _times_of(cells: tuple[Cell, ...], name: str) -> list[tuple[int, float]]:
    return [
        (cell.tokens, row.microseconds)
        for cell in cells
        for row in cell.rows
        if row.name == name and row.is_right and row.microseconds is not None
    ]


def _line(axes: Any, label: str, points: list[tuple[int, float]], **style: Any) -> None:
    if points:
        axes.plot(*zip(*points, strict=True), label=label, **style)


if __name__ == "__main__":
    main()
