"""The order of calls around a backend that exchanges tokens itself."""

import pytest
import torch

from moe_core.contract.plan import QuantizeOrder
from moe_core.execution import BindError
from moe_core.schedule import Turn
from moe_core.testing.numerics import assert_bitwise_equal


@pytest.fixture
def fused_plan(plan):
    def make(*chunks, tokens):
        return plan(*chunks, tokens=tokens, quantize=QuantizeOrder.LOCAL, scheduler_kind="FUSED_COMM")

    return make


def test_one_chunk_in_order_and_weights_move_only_after_the_kernel(stage, fused_plan, inputs):
    made = stage("fused", balanced=True)
    y = made.forward(fused_plan((5, 3), tokens=(5, 3)), inputs(3), Turn(is_first=True, is_last=False))
    assert made.log == [
        "start_wait_gpu True",
        "route 3",
        "done_wait_gpu True",
        "update_statistic True False False",
        "route True",
        "quantize 3",
        "run 3",
        "start_set_cpu False",
        "done_set_cpu False",
    ]
    [context] = made.backend.contexts
    assert context.max_num_tokens == 5
    assert context.token_selected_slots.tolist() == [[11, 12], [12, 13], [13, 14]]
    assert_bitwise_equal(y, inputs(3).x * 2)


def test_padding_is_stripped_first_and_never_restored(stage, fused_plan, inputs):
    made = stage("fused")
    y = made.forward(fused_plan((5, 3), tokens=(5, 3)), inputs(5, num_real=3))
    assert made.log == ["route 3", "quantize 3", "run 3"]
    assert_bitwise_equal(y, inputs(3).x * 2)


def test_a_rank_without_rows_launches_every_chunk(stage, fused_plan, inputs):
    made = stage("fused", balanced=True)
    y = made.forward(fused_plan((2, 0), (1, 0), tokens=(3, 0)), inputs(0))
    assert [line for line in made.log if line.startswith(("quantize", "run"))] == ["quantize 0", "run 0"] * 2
    assert sum(line.startswith("update_statistic") for line in made.log) == 2
    assert [(c.token_selected_slots.dtype, c.token_final_scales.dtype) for c in made.backend.contexts] == [
        (torch.int32, torch.float32)
    ] * 2
    assert [c.max_num_tokens for c in made.backend.contexts] == [2, 1]
    assert y.shape == (0, 4)


def test_chunks_that_run_out_before_the_others_do(stage, fused_plan, inputs):
    made = stage("fused")
    y = made.forward(fused_plan((2, 1), (2, 1), (1, 0), tokens=(5, 2)), inputs(2))
    assert [len(c.x) for c in made.backend.contexts] == [1, 1, 0]
    assert_bitwise_equal(y, inputs(2).x * 2)


def test_no_tokens_anywhere_launch_nothing(stage, fused_plan, inputs):
    made = stage("fused", balanced=True)
    assert made.forward(fused_plan(tokens=(0, 0)), inputs(0)).shape == (0, 4)
    assert made.log == [
        "start_wait_gpu True",
        "done_wait_gpu True",
        "update_statistic True True False",
        "start_set_cpu True",
        "done_set_cpu True",
    ]


@pytest.mark.parametrize(
    ("given", "arguments", "message"),
    [
        ({"lora_params": {"rank": 8}}, {}, "runs no LoRA"),
        ({"x_sf": torch.ones(3, 1)}, {}, "quantizes rows itself"),
        ({}, {"do_finalize": False}, "sums inside its kernel"),
    ],
)
def test_what_it_refuses(stage, fused_plan, inputs, given, arguments, message):
    made = stage("fused")
    with pytest.raises(NotImplementedError, match=message):
        made.forward(fused_plan((5, 3), tokens=(5, 3)), inputs(3, **given), **arguments)
    assert made.log == []


def test_router_weights_on_the_input_are_refused_when_it_is_made(stage, stubs):
    with pytest.raises(BindError, match="takes no rows that are multiplied by router weights"):
        stage("fused", problem=stubs.PROBLEM.evolve(top_k=1, apply_router_weight_on_input=True))
