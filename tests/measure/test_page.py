"""From a bench's JSON to tables and a plot."""

from pathlib import Path

import pytest

from moe_core.environment import preset
from moe_core.explain.as_text import as_text
from moe_core.measure.floor import CEILINGS, floor_of
from moe_core.measure.page import END, START, main, page, renewed
from moe_core.measure.public import PublicFigure, PublicFigures
from moe_core.measure.results import Bench, Cell, Mode, Role, Row, Timing
from moe_core.measure.shapes import SHAPES, TOKENS, parse_shape, parse_shapes
from moe_core.measure.view import bench_document

ROOT = Path(__file__).parents[2]
PUBLIC_FILE = ROOT / "docs" / "explanation" / "data" / "public-h200.json"
OURS, PEER = "moe_core.triton.any_path.none", "transformers.grouped_mm"
PUBLIC = PublicFigures(
    source="Somewhere.",
    figures=(
        PublicFigure(shape="mixtral-8x7b", tokens=1, format="bf16", kernel="theirs", microseconds=400),
        PublicFigure(shape="mixtral-8x7b", tokens=1, format="mxfp4", kernel="theirs", microseconds=100),
    ),
)


def row(name, role, microseconds, error=1e-3, reason=None):
    timing = Timing(mode=Mode.GRAPH, median=microseconds, p10=microseconds - 1, p90=microseconds + 1, rounds=5, calls=8)
    return Row(name=name, role=role, timing=timing, eager=timing, error=error, tolerance=8e-3, reason=reason)


@pytest.fixture
def bench():
    shape = parse_shape("mixtral-8x7b")
    ceilings = CEILINGS["NVIDIA H200"]
    rows = (
        row(OURS, Role.CANDIDATE, 200), row("moe_core.triton.fast.none", Role.CANDIDATE, 10, error=0.5),
        row(PEER, Role.PEER, 500), Row(name="transformers.batched_mm", role=Role.PEER, reason="too large"),
        row("moe_core.torch.select_experts.any", Role.ROUTING, 20),
        row(f"moe_core.torch.select_experts.any + {OURS}", Role.LAYER, 220),
    )  # fmt: skip
    cells = tuple(
        Cell(shape=shape.name, tokens=t, floor=floor_of(shape.problem, t, ceilings), rows=rows) for t in (4, 1)
    )
    return Bench(
        environment=preset("h200"), ceilings=ceilings, routing="uniform", seed=0, shapes=(shape,), cells=cells
    )  # fmt: skip


def test_tables_compare_with_the_best_right_answers(bench):
    lines = page(bench, PUBLIC).splitlines()
    assert "| 1 | 2 | 159 | triton.any_path | **200** | 199-201 | 80% | 200 | transformers.grouped_mm | 500 | 2.50x " \
        "| theirs | 400 | 2.00x |" in lines  # fmt: skip
    assert "| mixtral-8x7b | 2 | 2.50x | 2.50x | 2.00x | 2.00x |" in lines
    assert "| 1 | torch.select_experts | 20.0 | 20.0 | torch.select_experts + triton.any_path | 220 | 220 |" in lines
    assert "Wrong answers, which have no ratio: moe_core.triton.fast.none (mixtral-8x7b, 4 tokens), " in "\n".join(
        lines
    )
    assert "Cells below 0.95: none." in lines
    assert "| mixtral-8x7b | 1 | theirs | 400 | theirs | 100 |" in lines


def test_quantized_shapes_have_the_figures_of_their_format(bench):
    shape = parse_shape("mixtral-8x7b,mxfp4")
    rows = (
        row(OURS, Role.CANDIDATE, 50), row("transformers.grouped_mm dequantized", Role.ORIENTATION, 300),
    )  # fmt: skip
    floor = floor_of(shape.problem, 1, bench.ceilings)
    found = bench.evolve(shapes=(shape,), cells=(Cell(shape=shape.name, tokens=1, floor=floor, rows=rows),))
    lines = page(found, PUBLIC).splitlines()
    ours = "| 1 | 2 | 42.3 | triton.any_path | **50.0** | 49.0-51.0 | 85% | 50.0 "
    assert f"{ours}| transformers.grouped_mm dequantized | 300 |  | theirs | 100 | 2.00x |" in lines
    assert "| mixtral-8x7b-mxfp4 | 1 |  |  | 2.00x | 2.00x |" in lines
    assert "transformers.grouped_mm dequantized" in as_text(bench_document(found), 110)


def test_the_rate_of_fp8_is_told_where_floors_use_it(bench):
    fp8 = bench.evolve(shapes=(parse_shape("mixtral-8x7b,fp8_block"),))
    assert "bf16 790 TFLOP/s, fp8 1368 TFLOP/s" in page(fp8, PUBLIC)
    assert "fp8 1368" not in page(bench, PUBLIC)


def test_cells_that_lose_are_named(bench):
    slow = PUBLIC.evolve(figures=tuple(f.evolve(microseconds=150) for f in PUBLIC.figures))
    assert "Cells below 0.95: mixtral-8x7b at 1." in page(bench, slow).splitlines()


def test_a_terminal_shows_the_same(bench):
    text = as_text(bench_document(bench), 110)
    assert "mixtral-8x7b, 1 tokens: floor 159 us by bytes, 2 experts" in text
    assert "2.50x" in text
    assert "wrong    moe_core.triton.fast.none: error 0.5, tolerance 0.008" in text
    assert "not run  transformers.batched_mm: too large" in text


def test_only_the_generated_part_is_written_anew():
    before = f"# Title\n\n{START}\nold\n{END}\n\nby hand\n"
    assert renewed(before, "new\n") == f"# Title\n\n{START}\n\nnew\n\n{END}\n\nby hand\n"
    with pytest.raises(ValueError, match="found no generated part"):
        renewed("# Title\n", "new\n")


def test_the_documented_command(bench, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "bench.json").write_text(bench.to_json())
    target, plot = tmp_path / "performance.md", tmp_path / "performance.svg"
    target.write_text((ROOT / "docs" / "explanation" / "performance.md").read_text())
    arguments = [tmp_path / "bench.json", "--public", PUBLIC_FILE, "--into", target, "--plot", plot]
    main([str(argument) for argument in arguments])
    assert "![latency against tokens](performance.svg)" in target.read_text()
    assert "| mixtral-8x7b | 2 | 2.50x |" in target.read_text()
    drawn = plot.read_text()
    for label in ("mixtral-8x7b", "floor", "fastest public kernel", "moe_core's fastest", PEER):
        assert f">{label}<" in drawn
    assert "fast.none" not in drawn, "a wrong answer has no place in the picture"
    main([str(argument) for argument in arguments])
    assert plot.read_text() == drawn


def test_public_figures_are_whole():
    public = PublicFigures.load(PUBLIC_FILE)
    cells = {(f.shape, f.tokens) for f in public.figures if f.format == "bf16"}
    assert cells == {(shape, tokens) for shape in SHAPES.keys() - {"qwen3-next", "kimi-k2"} for tokens in TOKENS}
    assert public.best("gpt-oss-120b", 1, "mxfp4").microseconds == 60.9, "an engine beats triton_kernels"
    quantized = tuple(parse_shapes("quantized"))
    missing = {shape.name for shape in quantized} - {name for name, _ in public.beside(quantized)}
    assert missing == {"deepseek-v3-fp8", "gpt-oss-120b-nvfp4", "gpt-oss-120b-mxfp4_fp8"}
    assert public.best("qwen3-30b-a3b", 1).microseconds == 40.6
    assert public.best("deepseek-v3", 16384, "mxfp4").microseconds == 23109.3
    for figure in public.figures:  # uneven routing, and L2, may pass the floor by a few percent
        if figure.format == "bf16":
            floor = floor_of(parse_shape(figure.shape).problem, figure.tokens, CEILINGS["NVIDIA H200"])
            assert figure.microseconds > 0.9 * floor.microseconds
