"""``moe run``, on the processor."""

import pytest
import torch

from moe_core.cli.reduce import MOST_EXPERTS, MOST_HIDDEN, reduced
from moe_core.contract.problem import MoEProblem
from moe_core.contract.report import MoEResolutionReport
from moe_core.contract.vocabulary import QuantAlgo, RoutingMethodType
from moe_core.routing import RoutingConfig

FEW = ("--device", "cpu", "--tokens", "5", "--repeat", "1")


@pytest.fixture(autouse=True)
def _one_thread():
    """Threads that wait for each other on a busy machine take a hundred times the time of these small layers."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_layer_matches_its_twin(moe, qwen):
    said = moe("run", qwen, *FEW)
    assert said.status == 0
    first, second = said.out.splitlines()[:2]
    assert first.startswith("error ")
    assert "within the tolerance" in first
    assert second.startswith("time ")
    assert "hidden_size 2048 -> 512" in said.out
    assert "\nwinner " in said.out


def test_json_has_numbers_and_the_report(moe, deepseek):
    found = moe("run", deepseek, *FEW, "--unquantized", "--json").json
    assert found["passed"] is True
    assert 0 < found["relative_error"] <= found["tolerance"]
    assert "quant FP8_BLOCK_SCALES -> NONE" in found["reduced"]
    assert MoEResolutionReport.model_validate(found["report"]).ok


def test_equal_seeds_give_equal_errors(moe, qwen):
    errors = [moe("run", qwen, *FEW, "--seed", seed, "--json").json["relative_error"] for seed in (1, 1, 2)]
    assert errors[0] == errors[1] != errors[2]


def test_without_a_winner_nothing_runs(moe, qwen):
    said = moe("run", qwen, *FEW, "--backend", "TRTLLM", "--strict")
    assert said.status == 1
    assert "failed   TRTLLM (asked by argument) cannot run" in said.out


def test_outside_the_tolerance_is_status_1(moe, qwen, monkeypatch):
    from moe_core.cli import trial

    monkeypatch.setattr(trial, "tolerance_in", lambda dtype, declared: 1e-9)
    said = moe("run", qwen, *FEW)
    assert said.status == 1
    assert "outside the tolerance" in said.out


def problem(**changes):
    sizes = {"hidden_size": 7168, "intermediate_size": 2048, "num_experts": 256, "top_k": 8}
    return MoEProblem(**{"quant": QuantAlgo.NONE, "routing": RoutingMethodType.DEEPSEEK_V3, **sizes, **changes})


def test_reduced_keeps_the_ratio_of_widths():
    small, changes = reduced(problem())
    assert (small.hidden_size, small.intermediate_size, small.num_experts) == (448, 128, 16)
    assert changes == ("hidden_size 7168 -> 448", "intermediate_size 2048 -> 128", "num_experts 256 -> 16")


def test_reduced_cuts_no_quantization_group():
    small, _ = reduced(problem(quant=QuantAlgo.FP8_BLOCK_SCALES, quant_group_size=128))
    assert (small.hidden_size, small.intermediate_size) == (896, 256)


@pytest.mark.parametrize(("groups", "kept"), [(8, 4), (8, 1), (1, 1), (4, 2)])
def test_reduced_grouped_routing_still_routes(groups, kept):
    small, _ = reduced(problem(num_expert_groups=groups, topk_group=kept))
    config = RoutingConfig.of(small)
    assert config.num_experts // config.num_groups * config.topk_group >= config.top_k
    assert config.num_experts // config.num_groups >= 2


def test_reduced_leaves_small_problems_alone():
    small = problem(hidden_size=MOST_HIDDEN, num_experts=MOST_EXPERTS)
    assert reduced(small) == (small, ())


def test_reduced_stops_at_odd_sizes():
    small, changes = reduced(problem(hidden_size=2050, intermediate_size=704, num_experts=18))
    assert (small.hidden_size, small.intermediate_size, small.num_experts) == (1025, 352, 9)
    assert len(changes) == 3
