"""Outputs that the model weighs and sums itself: what its function is given, and when that is refused."""

import pytest
import torch

from moe_core.contract.plan import QuantizeOrder
from moe_core.schedule.abilities import UnfinalizedOutput
from moe_core.testing.numerics import assert_bitwise_equal


@pytest.fixture
def leaving(stubs):
    class Leaving(stubs.Backend):
        entries = 2

        def run_unfinalized(self, context):
            self.log.append("run unfinalized")
            self.contexts.append(context)
            index = torch.arange(len(context.x) * self.entries, dtype=torch.int32)
            return UnfinalizedOutput(context.x.repeat_interleave(2, 0), None, index)

    return Leaving


class Combine:
    """The model's function: writes down what it is given."""

    def __call__(self, **given):
        self.given = given
        return given["gemm2_output"].view(given["num_tokens"], 2, -1).sum(dim=1).double()


def test_the_models_function_runs_on_dispatched_rows_before_combine(stage, plan, inputs, leaving):
    combine = Combine()
    made = stage(backend=leaving, unfinalized_combine=combine, balanced=True)
    y = made.forward(plan((3, 3), tokens=(3, 3)), inputs(3), do_finalize=False)
    assert made.log[-4:] == ["run unfinalized", "start_set_cpu True", "combine", "done_set_cpu True"]
    assert combine.given["routing_weights"] is made.backend.contexts[0].token_final_scales
    assert combine.given["num_tokens"] == 3
    assert y.dtype is torch.float32, "cast before combine"
    assert_bitwise_equal(y, inputs(3).x * 2)


def test_where_nothing_is_exchanged_the_model_gets_what_the_experts_left(stage, plan, inputs, leaving):
    made = stage(backend=leaving)
    alone = plan((3,), tokens=(3,), quantize=QuantizeOrder.LOCAL)
    y = made.forward(alone, inputs(3), do_finalize=False)
    assert isinstance(y, UnfinalizedOutput)
    assert "combine" not in made.log
    made.forward(alone, inputs(3))
    assert made.log[-1] == "combine", "the next forward finds the strategy idle"


def test_a_backend_that_finalizes_is_refused(stage, plan, inputs):
    with pytest.raises(NotImplementedError, match=r"do_finalize=False: a\.b\.c\.none has no run_unfinalized"):
        stage().forward(plan((3, 3), tokens=(3, 3)), inputs(3), do_finalize=False)


def test_without_the_models_function_rows_cannot_be_sent_back(stage, plan, inputs, leaving):
    with pytest.raises(NotImplementedError, match="give unfinalized_combine_fn"):
        stage(backend=leaving).forward(plan((3, 3), tokens=(3, 3)), inputs(3), do_finalize=False)


def test_an_index_that_is_not_one_entry_per_pair(stage, plan, inputs, leaving):
    class Odd(leaving):
        entries = 3

    made = stage(backend=Odd, unfinalized_combine=Combine())
    with pytest.raises(ValueError, match="has 9 entries, needed one for each of the 6 dispatched"):
        made.forward(plan((3, 3), tokens=(3, 3)), inputs(3), do_finalize=False)


def test_outputs_of_several_chunks_cannot_be_one(stage, plan, inputs, leaving):
    chunked = plan((2,), (1,), tokens=(3,), quantize=QuantizeOrder.LOCAL)
    with pytest.raises(NotImplementedError, match="the outputs of 2 chunks cannot be one"):
        stage(backend=leaving).forward(chunked, inputs(3), do_finalize=False)
