"""The bench on the processor: who is in a cell, who is refused, and what is said of those that did not run."""

import pytest
import torch

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.request import MoERequest
from moe_core.contract.vocabulary import QuantAlgo, RoutingMethodType
from moe_core.environment import current
from moe_core.measure import judge
from moe_core.measure.bench import measure_shape
from moe_core.measure.ceilings import measured_ceilings
from moe_core.measure.results import Mode, Role
from moe_core.measure.shapes import FORMATS, Shape, parse_shape
from moe_core.measure.site import Site
from moe_core.measure.timing import Budget
from moe_core.registry import load_registry
from moe_core.testing.problems import ACTIVATIONS, small_problem

GROUPED, LOOP = "moe_core.torch.grouped_mm.none", "moe_core.torch.reference_loop.any"
ROUTER = "moe_core.torch.select_experts.any"


@pytest.fixture
def cells(shape, site_of, ceilings):
    def measure(*names, problem=None, tokens=(3,), **fields):
        measured = shape if problem is None else shape.evolve(problem=problem)
        return list(measure_shape(measured, tokens, site_of(*names, **fields), ceilings))

    return measure


def by_name(cell):
    return {row.name: row for row in cell.rows}


def test_candidates_and_peers_side_by_side(cells):
    pytest.importorskip("transformers")
    (cell,) = cells()
    rows = by_name(cell)
    assert {name: row.role for name, row in rows.items() if row.timing and row.role is not Role.LAYER} == {
        LOOP: Role.CANDIDATE, GROUPED: Role.PEER, "transformers.grouped_mm": Role.PEER,
        "transformers.batched_mm": Role.PEER, ROUTER: Role.ROUTING,
    }  # fmt: skip
    assert all(row.is_right and row.timing.mode is Mode.EAGER for row in rows.values() if row.timing)
    assert cell.ratio(rows[LOOP]) == pytest.approx(cell.best(Role.PEER).microseconds / rows[LOOP].microseconds)


def test_the_floor_is_of_the_experts_that_were_chosen(cells):
    one, many = cells(tokens=(1, 64))
    assert (one.floor.experts, many.floor.experts) == (3, 8)


def test_the_whole_layer_is_routed_by_each_router(cells):
    (cell,) = cells()
    layers = {row.name: row for row in cell.of_role(Role.LAYER)}
    assert set(layers) == {f"{ROUTER} + {LOOP}", f"{ROUTER} + {cell.best(Role.PEER).name}"}
    assert all(row.is_right for row in layers.values())


def test_a_wrong_answer_has_a_time_and_no_ratio(cells):
    (cell,) = cells("Wrong", "NotANumber")
    rows = by_name(cell)
    for name in ("tests.example.wrong.none", "tests.example.notanumber.none"):
        assert rows[name].timing is not None
        assert rows[name].is_wrong
        assert cell.ratio(rows[name]) is None
    assert rows["tests.example.wrong.none"].error == pytest.approx(0.1, rel=0.1)
    assert "NaN" in rows["tests.example.notanumber.none"].reason


def test_what_fails_keeps_nobody_from_being_measured(cells):
    (cell,) = cells("Broken", "Unbindable")
    rows = by_name(cell)
    assert rows["tests.example.broken.none"].reason == "RuntimeError: out of luck"
    assert rows["tests.example.unbindable.none"].reason == "RuntimeError: no kernels here"
    assert rows[LOOP].timing is not None


def test_large_experts_are_copied_for_one_candidate_at_a_time(shape, site_of, ceilings):
    site = site_of("Right", "Wrong")
    environment = site.deployment.environment.evolve(device_memory=700_000)
    crowded = site_of("Right", "Wrong", deployment=site.deployment.evolve(environment=environment))
    cells = list(measure_shape(shape, (1, 2), crowded, ceilings))
    assert [cell.tokens for cell in cells] == [1, 2] * 4
    last = {cell.tokens: by_name(cell) for cell in cells}
    assert all({LOOP, "tests.example.right.none", "tests.example.wrong.none", GROUPED} <= set(r) for r in last.values())
    assert "tests.example.right.none" not in by_name(cells[0])


def test_only_what_is_asked_for(cells):
    (cell,) = cells("Right", request=MoERequest(backend="EXAMPLE"))
    assert [row.name for row in cell.of_role(Role.CANDIDATE)] == ["tests.example.right.none"]
    assert GROUPED in {row.name for row in cell.of_role(Role.PEER)}, "peers are there whatever is asked for"


def test_banned_candidates_are_no_part_of_it(cells):
    (cell,) = cells("Right", request=MoERequest(bans=("VANILLA",)))
    assert LOOP not in by_name(cell)
    assert by_name(cell)["tests.example.right.none"].timing is not None


def test_a_refused_candidate_says_why(cells):
    rows = by_name(cells(problem=small_problem(hidden_size=60))[0])
    assert rows[GROUPED].timing is None
    assert "hidden_size: found 60, needed a multiple of 8" in rows[GROUPED].reason


def test_equal_seeds_give_equal_errors(cells):
    errors = [by_name(cells(seed=seed)[0])[LOOP].error for seed in (1, 1, 2)]
    assert errors[0] == errors[1] != errors[2]


def test_a_model_that_routes_by_itself_has_no_routing_rows(cells):
    (cell,) = cells(problem=small_problem(routing=RoutingMethodType.UNSPECIFIED))
    assert {row.role for row in cell.rows} == {Role.CANDIDATE, Role.PEER}


def test_other_routing_is_compared_with_its_own_twin(cells):
    problem = small_problem(
        routing=RoutingMethodType.DEEPSEEK_V3, routing_bias=True, num_expert_groups=2, topk_group=1,
        routed_scaling_factor=2.5,
    )  # fmt: skip
    (cell,) = cells(problem=problem)
    for role in (Role.ROUTING, Role.LAYER):
        ran = [row for row in cell.of_role(role) if row.timing is not None]
        assert ran
        assert all(row.is_right for row in ran)


@pytest.mark.parametrize("quant", [quant for quant in QuantAlgo if quant is not QuantAlgo.NONE])
def test_quantized_experts(quant, cells):
    (cell,) = cells("Right", problem=small_problem(quant=quant))
    rows = by_name(cell)
    assert all(rows[name].is_right for name in (LOOP, "tests.example.right.none"))
    assert cell.floor.weight_bytes < 8 * 3 * 64 * 32 * 1.25
    # Kernels for other formats are no contenders, and those for this one are told why they do not run here.
    named = {name.rpartition(".")[2] for name in rows if name.startswith("moe_core.triton.experts.")}
    assert named <= {quant.lower()}


def test_quantized_experts_in_the_form_of_gpt_oss(cells):
    (cell,) = cells(problem=small_problem(quant=QuantAlgo.W4A16_MXFP4, **ACTIVATIONS["swiglu_bias"]))
    assert by_name(cell)[LOOP].is_right


def test_quantized_experts_beside_their_values(cells):
    pytest.importorskip("transformers")
    (cell,) = cells(problem=small_problem(quant=QuantAlgo.W4A16_MXFP4))
    (values,) = cell.of_role(Role.ORIENTATION)
    assert values.name == "transformers.grouped_mm dequantized"
    assert values.is_right
    assert cell.of_role(Role.PEER) == ()
    assert cell.ratio(by_name(cell)[LOOP]) is None, "nobody serves them so"
    assert cell.share(values) is None, "the floor is that of the format"


def test_peers_of_a_format_say_why_they_do_not_run(cells):
    pytest.importorskip("transformers")
    (cell,) = cells(problem=small_problem(quant=QuantAlgo.FP8_BLOCK_SCALES))
    reasons = {row.name: row.reason for row in cell.of_role(Role.PEER)}
    assert reasons == dict.fromkeys(
        ("transformers.fp8_grouped_mm", "transformers.fp8_batched_mm"),
        "kernels is not installed; try: pip install kernels",
    )


def test_values_that_do_not_fit_are_left_out(site_of, ceilings):
    pytest.importorskip("transformers")
    site = site_of()
    environment = site.deployment.environment.evolve(device_memory=380_000)
    crowded = site_of(deployment=site.deployment.evolve(environment=environment))
    shape = Shape(name="small", problem=small_problem(quant=QuantAlgo.W4A16_MXFP4))
    *_, cell = measure_shape(shape, (1,), crowded, ceilings)
    (values,) = cell.of_role(Role.ORIENTATION)
    assert "take 96 KiB, and a quarter of the device is less" in values.reason


def test_the_twin_computes_equal_routes_once(cells, monkeypatch):
    made = []
    twin = judge.reference_moe

    def counted(*arguments):
        made.append(arguments)
        return twin(*arguments)

    monkeypatch.setattr(judge, "reference_moe", counted)
    cells(tokens=(1, 5))
    assert len(made) == 2
    cells(problem=small_problem(routing=RoutingMethodType.DEFAULT))
    assert len(made) == 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("text", [f"64,4,512,256,{name}" for name in FORMATS])
def test_on_a_gpu_every_format_is_right(text):
    registry = load_registry()
    device = torch.device("cuda", torch.cuda.current_device())
    site = Site(registry.catalog, MoEDeployment(environment=current(registry)), device, budget=Budget(0.01))
    for cell in measure_shape(parse_shape(text), (1, 30, 600), site, measured_ceilings(device)):
        assert not [(row.name, row.verdict, row.reason) for row in cell.rows if row.is_wrong]
        assert by_name(cell)[LOOP].timing is not None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("tokens", [1, 300])
def test_on_a_gpu_times_are_of_graph_replays(tokens):
    registry = load_registry()
    device = torch.device("cuda", torch.cuda.current_device())
    site = Site(registry.catalog, MoEDeployment(environment=current(registry)), device, budget=Budget(0.01))
    shape, ceilings = parse_shape("64,4,512,256"), measured_ceilings(device)
    (cell,) = measure_shape(shape, (tokens,), site, ceilings)
    assert not [(row.name, row.verdict, row.reason) for row in cell.rows if row.is_wrong]
    captured = {row.name for row in cell.rows if row.timing is not None and row.timing.mode is Mode.GRAPH}
    assert {GROUPED, ROUTER} <= captured
    assert all(row.eager is not None for row in cell.rows if row.name in captured)
    assert LOOP not in captured
