"""Which kernels run a number of tokens: by what was measured, and else by a cost model that says so."""

import json
from itertools import pairwise

import pytest

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.vocabulary import QuantAlgo
from moe_core.environment import preset
from moe_core.testing.problems import small_problem
from moe_plugins.triton_moe import choice
from moe_plugins.triton_moe.choice import GLUON, GROUPED, NO_SORT, PATHS, SWAP_AB, Machine, plan, predicted
from moe_plugins.triton_moe.cost import Shape
from moe_plugins.triton_moe.formats import FORMATS, format_name
from moe_plugins.triton_moe.options import paths_of
from moe_plugins.triton_moe.table import Entry, Table, TableError
from moe_plugins.triton_moe.tuner import configs_of, table_of

H200 = Machine("NVIDIA H200", 132, "3.6")
QWEN = Shape("bfloat16", 128, 8, 2048, 768, True)
MIXTRAL = Shape("bfloat16", 8, 2, 4096, 14336, True)
SCOUT = Shape("bfloat16", 16, 1, 5120, 8192, True)
SHAPES = {"qwen": QWEN, "mixtral": MIXTRAL, "scout": SCOUT, "not_gated": Shape("float16", 64, 6, 2688, 1856, False)}


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch):
    """Tables come and go with releases; a test brings its own."""
    monkeypatch.setattr(choice, "_TABLES", {})
    plan.cache_clear()
    yield
    plan.cache_clear()


@pytest.fixture
def measured(monkeypatch):
    def bring(*entries, device="NVIDIA H200", triton="3.6"):
        table = Table(device, triton, [Entry(*entry) for entry in entries])
        monkeypatch.setattr(choice, "_TABLES", {(device, triton): table})
        plan.cache_clear()

    return bring


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("path", PATHS)
def test_more_tokens_never_take_less_time(path, shape):
    times = [predicted(path, shape, tokens, 132) for tokens in (1, 2, 3, 5, 8, 16, 60, 64, 200, 1000, 4096, 16384)]
    assert all(fewer <= more for fewer, more in pairwise(times))


@pytest.mark.parametrize(
    ("tokens", "path"),
    [
        (1, NO_SORT),
        (2, NO_SORT),
        (4, NO_SORT),
        (16, SWAP_AB),
        (64, SWAP_AB),
        (256, SWAP_AB),
        (1024, GLUON),
        (4096, GLUON),
        (16384, GLUON),
    ],
)
def test_crossovers(tokens, path):
    assert plan(H200, QWEN, tokens).path == path


@pytest.mark.parametrize(
    ("shape", "tokens", "least", "most"),
    [
        (QWEN, 1, 17.6, 41),
        (QWEN, 64, 278, 306),
        (QWEN, 4096, 391, 750),
        (QWEN, 16384, 1566, 2700),
        (MIXTRAL, 1, 164, 195),
        (MIXTRAL, 16, 650, 680),
        (MIXTRAL, 16384, 14614, 20000),
        (SCOUT, 1, 58, 88),
    ],
)
def test_predictions_are_between_the_floor_and_what_others_reach(shape, tokens, least, most):
    assert least <= plan(H200, shape, tokens).microseconds <= most


def test_tiles_are_counted_as_random_routes_fill_them():
    # Padding of the formulas' own tables: rows of tiles over rows.
    for tokens, rows, padding in ((64, 16, 3.98), (256, 16, 1.40), (256, 64, 4.0), (1024, 64, 1.45), (4096, 128, 1.25)):
        assert QWEN.tiles(tokens, rows) * rows / (tokens * QWEN.top_k) == pytest.approx(padding, rel=0.05)


def test_gluon_needs_its_version_and_its_depth():
    assert plan(H200._replace(triton="3.7"), QWEN, 4096).path == GROUPED
    assert plan(H200, QWEN._replace(hidden=2088), 4096).path == GROUPED


def test_a_miss_says_what_is_missing():
    found = plan(H200, QWEN, 64)
    assert (found.source, found.note) == ("cost_model", "no entries for NVIDIA H200")
    assert found.key == "NVIDIA H200 bfloat16 E128 H2048 I768 K8, 64 tokens, triton 3.6"


def test_what_was_measured_beats_what_is_computed(measured):
    measured((QWEN, 64, GROUPED, {"up": {"rows": 64}}, 290.0), (QWEN, 64, SWAP_AB, {}, 300.0))
    found = plan(H200, QWEN, 64)
    assert (found.path, found.config, found.source, found.microseconds) == (GROUPED, {"up": {"rows": 64}}, "table", 290)
    assert plan(H200, QWEN, 64, (SWAP_AB,)).microseconds == 300


@pytest.mark.parametrize(
    ("machine", "shape", "tokens", "note"),
    [
        (H200, QWEN, 100, "no entry for 100 tokens"),
        (H200, QWEN._replace(inner=1024), 64, "no entry for NVIDIA H200 bfloat16 E128 H2048 I1024 K8, 64 tokens"),
        (H200._replace(triton="3.7"), QWEN, 64, "no entries for triton 3.7"),
    ],
)
def test_the_nearest_entry_is_taken_and_scaled(measured, machine, shape, tokens, note):
    measured((QWEN, 64, SWAP_AB, {"up": {"rows": 8}}, 300.0))
    found = plan(machine, shape, tokens)
    assert (found.path, found.source) == (SWAP_AB, "nearest")
    assert found.note.startswith(note)
    now, then = (predicted(SWAP_AB, *of, 132, {"up": {"rows": 8}}) for of in ((shape, tokens), (QWEN, 64)))
    assert found.microseconds == pytest.approx(300 * now / then)


def test_tiles_that_are_too_low_grow_dear(measured):
    """Eight rows are many tiles of 1024 tokens: more than twice the time of tiles that fit."""
    times = [predicted(SWAP_AB, QWEN, 1024, 132, config) for config in ({"up": {"rows": 8}}, None)]
    assert times[0] > 2 * times[1]
    measured((QWEN, 256, SWAP_AB, {"up": {"rows": 8}}, 300.0), (QWEN, 4096, GLUON, {}, 700.0))
    assert plan(H200, QWEN, 1024).path == GLUON


def test_what_is_carried_over_does_not_outdo_what_was_measured(measured):
    measured((QWEN, 64, SWAP_AB, {}, 300.0), (QWEN, 16, GROUPED, {}, 1.0))
    assert plan(H200, QWEN, 64).path == SWAP_AB
    assert plan(H200, QWEN, 32).path == GROUPED


@pytest.mark.parametrize(
    ("shape", "tokens"), [(MIXTRAL, 64), (QWEN._replace(gated=False), 64), (QWEN._replace(inner=2048), 64), (QWEN, 4)]
)
def test_a_far_entry_is_not_taken(measured, shape, tokens):
    measured((QWEN, 64, SWAP_AB, {}, 300.0))
    assert plan(H200, shape, tokens).source == "cost_model"


def test_times_of_unlike_formats_say_nothing_of_each_other(measured):
    blocks = QWEN._replace(format="fp8_blocks")
    measured((blocks, 64, SWAP_AB, {"up": {"rows": 8}}, 150.0))
    assert plan(H200, QWEN, 64).source == plan(H200, QWEN._replace(format="int8"), 64).source == "cost_model"
    found = plan(H200, blocks, 64)
    assert (found.source, found.key) == (
        "table",
        "NVIDIA H200 bfloat16 fp8_blocks E128 H2048 I768 K8, 64 tokens, triton 3.6",
    )


def test_an_entry_of_a_format_that_is_alike_may_be_nearer(measured):
    blocks, tensors = QWEN._replace(format="fp8_blocks"), QWEN._replace(format="fp8")
    measured((tensors, 16, SWAP_AB, {"up": {"rows": 8}}, 100.0), (blocks, 64, SWAP_AB, {"up": {"rows": 16}}, 150.0))
    assert plan(H200, tensors, 64).config == {"up": {"rows": 16}}
    assert plan(H200, tensors, 16).config == {"up": {"rows": 8}}


def test_four_bit_formats_are_near_each_other(measured):
    fp4, config = QWEN._replace(format="mxfp4"), {"up": {"rows": 8}, "down": {"rows": 8}}
    measured((fp4, 64, SWAP_AB, config, 100.0))
    found = plan(H200, QWEN._replace(format="nvfp4"), 64)
    assert (found.config, found.source) == (config, "nearest")
    assert found.note.startswith("no entry for NVIDIA H200 bfloat16 nvfp4 E128")
    assert plan(H200, QWEN._replace(format="int8"), 64).source == "cost_model"
    measured((fp4, 64, SWAP_AB, config, 100.0), (QWEN._replace(format="nvfp4"), 64, SWAP_AB, {}, 120.0))
    assert plan(H200, QWEN._replace(format="nvfp4"), 64).config == {}


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "none"])
def test_every_format_has_a_choice_for_every_number_of_tokens(name):
    shape = QWEN._replace(format=name)
    assert [plan(H200, shape, tokens).path for tokens in (1, 64)] == [NO_SORT, SWAP_AB]
    for tokens in (1, 64, 16384):
        found = plan(H200, shape, tokens)
        if tokens < 16384:  # where bytes are what is waited for
            assert found.microseconds < plan(H200, QWEN, tokens).microseconds
        assert found.path in {config["path"] for config in configs_of(paths_of(shape), shape, tokens)}


@pytest.mark.parametrize(
    ("quant", "group", "name"),
    [
        (QuantAlgo.W4A16_AWQ, None, "int4_128"),
        (QuantAlgo.W4A16_GPTQ, 32, "int4_32"),
        (QuantAlgo.W4A16_GPTQ, 256, "int4_128"),
        (QuantAlgo.W4A16_GPTQ, 16, None),
        (QuantAlgo.W4A16, None, "int4_128"),
        (QuantAlgo.NVFP4, None, "nvfp4"),
        (QuantAlgo.MXFP8, None, None),
    ],
)
def test_names_of_formats(quant, group, name):
    assert format_name(quant, group) == name


def test_more_tokens_than_were_measured_are_near(measured):
    measured((QWEN, 16384, GROUPED, {}, 2500.0))
    assert plan(H200, QWEN, 200_000).source == "nearest"


def test_a_path_that_was_measured_for_fewer_tokens_than_others_is_far(measured):
    measured((QWEN, 16, SWAP_AB, {"up": {"rows": 8}}, 200.0), (QWEN, 4096, GROUPED, {}, 700.0))
    assert plan(H200, QWEN, 256).source == "cost_model"
    assert plan(H200, QWEN, 200_000).path == GROUPED


def table_text(**changes):
    entry = {
        "dtype": "bfloat16", "experts": 128, "top_k": 8, "hidden": 2048, "intermediate": 768, "gated": True,
        "tokens": 64, "path": SWAP_AB, "config": {}, "microseconds": 300.0,
    }  # fmt: skip
    data = {"schema": 1, "device": "NVIDIA H200", "triton": "3.6", "entries": [entry]}
    for name, value in changes.items():
        (data if name in data else entry)[name] = value
    return json.dumps(data)


def test_a_table_is_what_it_writes():
    for text in (table_text(), table_text(format="mxfp4")):
        assert json.dumps(Table.parse(text, "tables/own.json").as_json()) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Expecting"),
        ("[]", "found schema list, needed 1"),
        (table_text(schema=2), "found schema 2, needed 1"),
        (table_text(tokens=0), "must be positive numbers"),
        (table_text(tokens=True), "must be positive numbers"),
        (table_text(microseconds="fast"), "must be positive numbers"),
        (table_text(gated=1), "gated a boolean"),
        (table_text(config=[]), "config must be an object"),
        (table_text(config={"up": [8]}), "up and down of config must be objects, found {'up'"),
        (table_text(path="sorted"), "path must be one of no_sort, swap_ab, grouped, grouped_gluon; found sorted"),
        (table_text(format="fp7"), "format must be one of none, .*; found fp7"),
        (table_text(entries=[{"tokens": 1}]), "has or lacks config"),
        (table_text(entries=3), "not iterable"),
    ],
)
def test_a_broken_table_names_its_file(text, why):
    with pytest.raises(TableError, match=rf"^tables/own\.json: .*{why}"):
        Table.parse(text, "tables/own.json")


def test_a_users_table_is_added(tmp_path):
    file = tmp_path / "own.json"
    for microseconds in (300.0, 310.0):
        file.write_text(table_text(microseconds=microseconds))
        choice.add_table(file)
        assert plan(H200, QWEN, 64).microseconds == microseconds
    file.write_text("{")
    with pytest.raises(TableError, match=r"^own\.json: "):
        choice.add_table(file)


class Row:
    def __init__(self, tokens, config, microseconds):
        self.tokens, self.config, self.microseconds = tokens, config, microseconds


def test_tuning_merges_into_a_table():
    first = table_of(H200, QWEN, [(64, Row(64, {"path": SWAP_AB, "config": {}}, 300.123))], None)
    rows = [
        (64, Row(64, {"path": SWAP_AB, "config": {"up": {}}}, 280.0)),
        (1, Row(1, {"path": NO_SORT, "config": {}}, 23)),
    ]
    merged = Table.of(json.loads(json.dumps(table_of(H200, QWEN, rows, first))))
    assert [(e.tokens, e.path, e.microseconds) for e in merged.entries] == [(1, NO_SORT, 23), (64, SWAP_AB, 280)]
    with pytest.raises(ValueError, match=r"the table is of NVIDIA H200 and triton 3\.6, and this is NVIDIA H100"):
        table_of(H200._replace(device="NVIDIA H100"), QWEN, rows, first)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("tokens", [1, 16, 256, 4096])
def test_a_tuner_tries_few_tiles_and_what_would_be_chosen(shape, tokens):
    configs = configs_of(PATHS, shape, tokens)
    assert plan(H200, shape, tokens).path in {config["path"] for config in configs}
    assert len(configs) <= 32


def test_the_resolver_hears_what_a_rank_would_run():
    problem = small_problem(hidden_size=2048, intermediate_size=768, num_experts=128, top_k=8)
    place = MoEDeployment(environment=preset("h200"), ep_size=8, dp_size=8)
    found = choice.experts_tuning(problem, place, 512)
    assert found.key == "NVIDIA H200 bfloat16 E16 H2048 I768 K8, 512 tokens, triton 3.6"
    assert found.microseconds == plan(H200, QWEN._replace(experts=16), 512).microseconds


def test_the_unknown_is_not_guessed():
    place = MoEDeployment(environment=preset("h200"))
    assert choice.experts_tuning(small_problem(hidden_size=None), place, 1) is None
    assert (
        choice.experts_tuning(small_problem(), place.evolve(environment=preset("h200").evolve(device_name=None)), 1)
        is None
    )
