"""The order of calls around a backend that exchanges nothing itself."""

import warnings

import pytest
import torch

from moe_core.contract.plan import QuantizeOrder
from moe_core.schedule import Turn
from moe_core.schedule.abilities import RoutedAndQuantized
from moe_core.schedule.inputs import InputReady
from moe_core.testing.numerics import assert_bitwise_equal

LOCAL = QuantizeOrder.LOCAL


def hooks(log, name):
    return [line for line in log if line.startswith(name)]


def test_one_chunk_with_quantization_before_dispatch(stage, plan, inputs):
    made = stage(balanced=True)
    y = made.forward(plan((5, 3), tokens=(5, 3)), inputs(3), Turn(is_first=True, is_last=False))
    assert made.log == [
        "start_wait_gpu True",
        "route 3",
        "done_wait_gpu True",
        "update_statistic True False False",
        "route True",
        "quantize 3",
        "dispatch [5, 3]",
        "run 3",
        "start_set_cpu False",
        "combine",
        "done_set_cpu False",
    ]
    assert_bitwise_equal(y, inputs(3).x * 2)
    assert made.comm.sent[0].token_selected_slots.tolist() == [[11, 12], [12, 13], [13, 14]], "slots, not experts"


def test_quantization_after_dispatch(stage, plan, inputs):
    made = stage()
    made.forward(plan((5, 3), tokens=(5, 3), quantize=QuantizeOrder.AFTER_DISPATCH), inputs(3))
    assert made.log == ["route 3", "dispatch [5, 3]", "quantize 3", "run 3", "combine"]


@pytest.mark.parametrize("order", QuantizeOrder)
def test_rows_that_are_quantized_already_are_not_quantized_again(stage, plan, inputs, order):
    made = stage()
    made.forward(plan((5, 3), tokens=(5, 3), quantize=order), inputs(3, x_sf=torch.ones(3, 1)))
    assert made.log == ["route 3", "dispatch [5, 3]", "run 3", "combine"]
    assert made.backend.contexts[0].x_sf.shape == (3, 1)


def test_a_strategy_that_gathers_statistics_gets_them_on_the_last_call_alone(stage, plan, inputs, stubs):
    made = stage(balanced=True, comm=stubs.Gathering)
    two = plan((1, 1), (1, 1), tokens=(2, 2))
    made.forward(two, inputs(2))
    assert hooks(made.log, "update_statistic") == [
        "update_statistic True False True",
        "update_statistic False True True",
    ]
    assert hooks(made.log, "prepare_dispatch") == ["prepare_dispatch"]
    last = made.log[made.log.index("prepare_dispatch") :]
    assert last[:4] == ["prepare_dispatch", "quantize 1", "dispatch [1, 1]", "update_gathered_statistic [2, 8]"]


@pytest.mark.parametrize("repeat", [0, 1])
def test_first_and_last_over_chunks_and_repeats(stage, plan, inputs, repeat):
    made = stage(balanced=True)
    made.forward(plan((2, 1), (1, 1), (1, 1), tokens=(4, 3)), inputs(3), Turn(repeat == 0, repeat == 1))
    first, last = repeat == 0, repeat == 1
    for hook in ("start_wait_gpu", "done_wait_gpu"):
        assert hooks(made.log, hook) == [f"{hook} {first}", f"{hook} False", f"{hook} False"]
    for hook in ("start_set_cpu", "done_set_cpu"):
        assert hooks(made.log, hook) == [f"{hook} False", f"{hook} False", f"{hook} {last}"]


def test_a_rank_without_rows_repeats_its_first_chunk_and_drops_the_result(stage, plan, inputs):
    made = stage()
    kept = [[True, True], [True, False], [True, False]]
    y = made.forward(plan((2, 1), (2, 1), (1, 1), tokens=(5, 1), kept=kept), inputs(1))
    assert hooks(made.log, "run") == ["run 1"] * 3
    assert_bitwise_equal(y, inputs(1).x * 2)
    assert [rows.token_selected_slots.tolist() for rows in made.comm.sent] == [[[1, 2]], [[-1, -1]], [[-1, -1]]], (
        "a repeated row is padding: nobody computes it or counts it"
    )


def test_short_ranks_bring_zero_rows_that_are_padding(stage, plan, inputs):
    made = stage(balanced=True)
    given = inputs(3, input_ids=torch.arange(3))
    y = made.forward(plan((5, 5), tokens=(5, 3), padded=(5, 5)), given)
    assert "route 5 ids 5" in made.log, "a hashed router sees as many ids as rows"
    [sent] = made.comm.sent
    assert sent.x[3:].count_nonzero() == 0
    assert sent.token_selected_slots.tolist() == [[11, 12], [12, 13], [13, 14], [-1, -1], [-1, -1]]
    assert made.balancer.counted[0].tolist()[3:] == [[-1, -1], [-1, -1]]
    assert_bitwise_equal(y, inputs(3).x * 2)


def test_rows_that_are_padded_already_are_cut_off_at_the_end(stage, plan, inputs):
    made = stage()
    y = made.forward(plan((5, 5), tokens=(5, 3), padded=(5, 5)), inputs(5, num_real=3))
    assert_bitwise_equal(y, inputs(3).x * 2)
    assert made.comm.sent[0].x.shape == (5, 4)


def test_padding_of_a_captured_graph_is_left_out_of_a_copy(stage, plan, inputs):
    made = stage()
    mask = torch.tensor([False, True, False])
    given = inputs(3, is_padding=mask)
    before = given.router_logits.clone()
    made.forward(plan((2, 2), (1, 1), tokens=(3, 3)), given)
    assert [rows.token_selected_slots.tolist() for rows in made.comm.sent] == [[[1, 2], [-1, -1]], [[3, 4]]]
    assert_bitwise_equal(given.router_logits, before)


def test_padding_that_nobody_can_leave_out_is_computed_and_said_once(stage, plan, inputs, stubs):
    made = stage(strategy=stubs.STRATEGY.evolve(capabilities={}))
    given = inputs(2, is_padding=torch.tensor([False, True]))
    with pytest.warns(UserWarning, match=r"a\.b\.c\.none with Strategy computes rows that are marked as padding"):
        made.forward(plan((2, 2), tokens=(2, 2)), given)
    assert made.comm.sent[0].token_selected_slots.tolist() == [[1, 2], [2, 3]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.forward(plan((2, 2), tokens=(2, 2)), given)


def test_no_tokens_anywhere_move_nothing_and_let_the_balancer_go_on(stage, plan, inputs):
    made = stage(balanced=True)
    y = made.forward(plan(tokens=(0, 0)), inputs(0), Turn(is_first=False, is_last=True))
    assert made.log == [
        "start_wait_gpu False",
        "done_wait_gpu False",
        "update_statistic False True False",
        "start_set_cpu True",
        "done_set_cpu True",
    ]
    assert (y.shape, y.dtype) == ((0, 4), torch.float32)


def test_no_received_rows_reach_no_kernel_and_still_combine(stage, plan, inputs, stubs):
    class Sending(stubs.Strategy):
        def _dispatch(self, rows, all_rank_num_tokens):
            return super()._dispatch(rows, all_rank_num_tokens)._replace(x=rows.x[:0])

    made = stage(comm=Sending)
    made.forward(plan((2, 2), tokens=(2, 2)), inputs(2))
    assert made.log == ["route 2", "quantize 2", "dispatch [2, 2]", "combine"]


def test_chunks_where_nothing_is_exchanged_are_left_out_when_empty(stage, plan, inputs):
    made = stage()
    alone = plan((2, 1), (2, 0), tokens=(4, 1), kept=[[True, True], [True, False]], quantize=LOCAL)
    assert_bitwise_equal(made.forward(alone, inputs(1)), inputs(1).x * 2)
    assert hooks(made.log, "run") == ["run 1"]
    nothing = plan((2, 0), (2, 0), tokens=(4, 0), kept=[[True, False]] * 2, quantize=LOCAL)
    assert made.forward(nothing, inputs(0)).shape == (0, 4)


class Aux:
    """A second stream that is only written down."""

    def __init__(self, log):
        self.log = log

    def fork(self):
        self.log.append("fork")

    def join(self):
        self.log.append("join")

    def scope(self):
        return self

    def __enter__(self):
        self.log.append("on aux")

    def __exit__(self, *_):
        self.log.append("on main")


@pytest.mark.parametrize("may_overlap", [True, False])
def test_even_chunks_run_on_the_second_stream_if_the_plan_allows_it(stage, plan, inputs, may_overlap):
    streams = []
    made = stage(aux=Aux(streams))
    event = FakeEvent(made.log)
    three = plan((1, 1), (1, 1), (1, 1), tokens=(3, 3), may_overlap=may_overlap)
    y = made.forward(three, inputs(3, ready=InputReady(event)))
    assert streams == (["fork", "on aux", "on main", "on aux", "on main", "join"] if may_overlap else [])
    # Before any rows are read on another stream, the main one must have waited.
    assert made.log.index("wait") == (0 if may_overlap else 1)
    assert_bitwise_equal(y, inputs(3).x * 2)


class FakeEvent:
    def __init__(self, log):
        self.log = log

    def wait(self):
        self.log.append("wait")


def test_rows_are_waited_for_once_and_after_routing(stage, plan, inputs):
    made = stage()
    made.forward(plan((2, 2), tokens=(2, 2)), inputs(2, ready=InputReady(FakeEvent(made.log))))
    assert made.log == ["route 2", "wait", "quantize 2", "dispatch [2, 2]", "run 2", "combine"]
    made.log.clear()
    made.forward(plan((3, 3), tokens=(3, 2), padded=(3, 3)), inputs(2, ready=InputReady(FakeEvent(made.log))))
    assert made.log[:2] == ["wait", "route 3"], "appending zero rows reads them"


def test_the_router_weight_goes_on_the_input(stage, plan, inputs, stubs):
    made = stage(problem=stubs.PROBLEM.evolve(top_k=1, apply_router_weight_on_input=True))
    given = inputs(2)
    y = made.forward(plan((2, 2), tokens=(2, 2)), given)
    [sent] = made.comm.sent
    assert_bitwise_equal(sent.x, inputs(2).x * 0.5)
    assert sent.token_final_scales.tolist() == [[1.0], [1.0]], "it is applied once"
    assert_bitwise_equal(y, inputs(2).x)
    assert_bitwise_equal(given.x, inputs(2).x)
    with pytest.raises(ValueError, match="quantized already; give it unquantized"):
        made.forward(plan((2, 2), tokens=(2, 2)), inputs(2, x_sf=torch.ones(2, 1)))


def test_a_kernel_that_routes_and_quantizes_is_asked_first(stage, plan, inputs, stubs):
    class Fusing(stubs.Backend):
        answer = True

        def try_fused_route_quant(self, x, router_logits):
            self.log.append("fused")
            if not self.answer:
                return None
            return RoutedAndQuantized(torch.ones(len(x), 2, dtype=torch.int32), torch.ones(len(x), 2), -x, None)

    made = stage(backend=Fusing)
    made.forward(plan((1, 1), tokens=(1, 1)), inputs(1))
    assert made.log == ["fused", "dispatch [1, 1]", "run 1", "combine"]
    assert_bitwise_equal(made.comm.sent[0].x, -inputs(1).x)
    made.log.clear()
    made.backend.answer = False
    made.forward(plan((1, 1), tokens=(1, 1)), inputs(1))
    assert made.log == ["fused", "route 1", "quantize 1", "dispatch [1, 1]", "run 1", "combine"]
    for refused in (plan((1, 1), tokens=(1, 1), quantize=QuantizeOrder.AFTER_DISPATCH),):
        made.log.clear()
        made.forward(refused, inputs(1))
        assert made.log[0] == "route 1", "rows that are moved unquantized are not quantized first"
    assert "fused" not in forwarded(stage(backend=Fusing, balanced=True), plan, inputs), "a balancer counts the routes"


def forwarded(made, plan, inputs):
    made.forward(plan((1, 1), tokens=(1, 1)), inputs(1))
    return made.log


def test_a_kernel_that_routes_itself_gets_logits_where_nothing_is_exchanged(stage, plan, inputs, stubs):
    class Routing(stubs.Backend):
        def run_from_logits(self, x, x_sf, router_logits):
            self.log.append("run from logits")
            return x * 3

    candidate = stubs.BACKEND.evolve(routing_split="either")
    made = stage(backend=Routing, candidate=candidate)
    y = made.forward(plan((2,), tokens=(2,), quantize=LOCAL), inputs(2))
    assert made.log == ["quantize 2", "dispatch [2]", "run from logits", "combine"]
    assert_bitwise_equal(y, inputs(2).x * 3)
    assert "route 1" in forwarded(stage(backend=Routing, candidate=candidate), plan, inputs)
    assert "route 1" in forwarded(stage(backend=Routing), plan, inputs)


def test_workspaces_are_asked_for_the_largest_chunk_and_one_per_stream(stage, plan, inputs, stubs):
    class Needing(stubs.Backend):
        def get_workspaces(self, num_rows):
            self.log.append(f"workspaces {list(num_rows)}")
            return [f"space {i}" for i in range(len(num_rows))]

    candidate = stubs.BACKEND.evolve(input_requirement={"requires_run_moe_workspace": True})
    made = stage(backend=Needing, candidate=candidate, aux=Aux([]))
    made.forward(plan((2, 2), (2, 1), (1, 1), tokens=(5, 4), may_overlap=True), inputs(4))
    assert made.log[0] == "workspaces [4, 4]"
    assert [c.workspace for c in made.backend.contexts] == ["space 0", "space 1", "space 0"]
    made.forward(plan((2, 2), tokens=(2, 2)), inputs(2))
    assert "workspaces [4]" in made.log


def test_ids_of_other_ranks_become_minus_one_for_kernels_that_want_it(stage, plan, inputs, stubs):
    made = stage(candidate=stubs.BACKEND.evolve(input_requirement={"requires_sanitized_expert_ids": True}), rank=1)
    made.forward(plan((4, 4), tokens=(4, 4)), inputs(4))
    assert made.backend.contexts[0].token_selected_slots.tolist() == [[-1, -1], [-1, -1], [-1, 4], [4, 5]]
    assert made.comm.sent[0].token_selected_slots.tolist()[0] == [1, 2], "the exchange needs all of them"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scales_come_in_the_type_that_the_backend_asks_for(stage, plan, inputs, stubs, dtype):
    made = stage(candidate=stubs.BACKEND.evolve(input_requirement={"routing_scales_dtype": dtype}))
    made.forward(plan((1, 1), tokens=(1, 1)), inputs(1))
    assert made.backend.contexts[0].token_final_scales.dtype is getattr(torch, dtype)


def test_logits_of_another_number_of_rows_are_refused(stage, plan, inputs):
    made = stage()
    given = inputs(3)
    with pytest.raises(ValueError, match=r"routing gave ids \[2, 2\] .*needed \[3, 2\]"):
        made.forward(
            plan((3, 3), tokens=(3, 3)), type(given)(x=given.x, router_logits=given.router_logits[:2], num_real=3)
        )


def test_a_mask_of_another_number_of_rows_is_refused(stage, plan, inputs):
    with pytest.raises(ValueError, match=r"is_padding is \[2\], needed \[3\]"):
        stage().forward(plan((3, 3), tokens=(3, 3)), inputs(3, is_padding=torch.zeros(2, dtype=torch.bool)))


def test_lora_runs_in_one_chunk_of_a_backend_that_has_it(stage, plan, inputs, stubs):
    adapters = {"rank": 8}
    one, two = plan((2, 2), tokens=(2, 2)), plan((1, 1), (1, 1), tokens=(2, 2))
    with pytest.raises(NotImplementedError, match=r"a\.b\.c\.none runs no LoRA"):
        stage().forward(one, inputs(2, lora_params=adapters))
    made = stage(candidate=stubs.BACKEND.evolve(capabilities={"supports_moe_lora": True}))
    made.forward(one, inputs(2, lora_params=adapters))
    assert made.backend.contexts[0].lora_params is adapters
    with pytest.raises(NotImplementedError, match="this forward has 2; bring fewer tokens"):
        made.forward(two, inputs(2, lora_params=adapters))
    assert len(made.backend.contexts) == 1
