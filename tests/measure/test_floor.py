"""The floor, on published figures: microseconds of a table for one H200, and shares measured on such machines."""

import pytest

from moe_core.contract.vocabulary import ActivationType, QuantAlgo
from moe_core.measure.floor import Bound, Ceilings, expected_experts, floor_of
from moe_core.measure.shapes import parse_shape

TABLE = Ceilings(source="a copy's bandwidth", read_gb_s=4300, bf16_tflop_s=790, fp8_tflop_s=1500)
RUN = Ceilings(source="the best of a run", read_gb_s=4430, bf16_tflop_s=798, fp8_tflop_s=1368)
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096, 16384)
BLOCK, MXFP4 = QuantAlgo.FP8_BLOCK_SCALES, QuantAlgo.W4A16_MXFP4

WITH_REDUCTION = {
    ("mixtral-8x7b", QuantAlgo.NONE): (164, 287, 448, 590, 650, 657, 658, 660, 665, 913, 3653, 14614),
    ("qwen3-30b-a3b", QuantAlgo.NONE): (17.6, 34.1, 64.0, 114, 181, 246, 278, 284, 287, 304, 391, 1566),
    ("qwen3-235b", QuantAlgo.NONE): (70, 136, 256, 454, 724, 983, 1109, 1129, 1135, 1171, 1566, 6263),
    ("qwen3-next", QuantAlgo.NONE): (14.7, 29.0, 56.9, 110, 203, 351, 539, 692, 751, 776, 855, 1305),
    ("64,8,2048,1024", QuantAlgo.NONE): (23.4, 43.9, 77.6, 123, 166, 186, 189, 191, 194, 213, 522, 2088),
    ("qwen3-30b-a3b", BLOCK): (8.8, 17.1, 32.1, 56.8, 90.8, 123, 140, 143, 146, 164, 234, 825),
    ("deepseek-v3", BLOCK): (82, 162, 313, 589, 1046, 1676, 2284, 2587, 2641, 2700, 2931, 7697),
    ("gpt-oss-120b", MXFP4): (12.3, 24.3, 47.0, 88.5, 157, 252, 344, 390, 400, 418, 1032, 4129),
}


@pytest.mark.parametrize(("name", "quant"), WITH_REDUCTION, ids=str)
def test_table(name, quant):
    problem = parse_shape(name).problem.evolve(quant=quant)
    for tokens, printed in zip(TOKENS, WITH_REDUCTION[name, quant], strict=True):
        found = floor_of(problem, tokens, TABLE, separate_reduction=True).microseconds
        last_digit = 0.1 if printed < 100 and printed % 1 else 1
        scales = 4 / 128**2 if quant is BLOCK else 0
        assert found * (1 + scales / 2) == pytest.approx(printed, abs=0.55 * last_digit + printed * scales / 2)


@pytest.mark.parametrize(
    ("name", "tokens", "experts", "milliseconds"),
    [
        ("mixtral-8x7b", 1, 2, 0.1591), ("mixtral-8x7b", 4, 5, 0.3977), ("mixtral-8x7b", 16384, 8, 14.4673),
        ("qwen3-30b-a3b", 16, 82, 0.1747), ("qwen3-30b-a3b", 256, 128, 0.2732), ("qwen3-30b-a3b", 4096, 128, 0.3875),
        ("gpt-oss-120b", 64, 105, 1.1797), ("gpt-oss-120b", 4096, 128, 1.4486),
    ],
)  # fmt: skip
def test_roofline_of_counted_experts(name, tokens, experts, milliseconds):
    """That roofline leaves out what lies between the projections, which a fused kernel might keep on the chip."""
    problem = parse_shape(name).problem
    found = floor_of(problem, tokens, RUN, experts=experts)
    assert found.activation_bytes == 4 * tokens * (problem.hidden_size + problem.top_k * problem.intermediate_size)
    by_bytes = (found.weight_bytes + 4 * tokens * problem.hidden_size) / RUN.read_gb_s / 1e6
    by_flops = found.flop / RUN.bf16_tflop_s / 1e9
    assert max(by_bytes, by_flops) == pytest.approx(milliseconds, abs=6e-5)


def test_bound_changes_at_the_ridge():
    """Bytes and operations of a bfloat16 weight take equally long at 184 rows per expert, activations aside."""
    problem = parse_shape("128,8,8192,8192").problem
    assert floor_of(problem, 184 * 16 - 64, TABLE).bound is Bound.BYTES
    assert floor_of(problem, 184 * 16 + 256, TABLE).bound is Bound.FLOPS


def test_a_gate_is_a_third_matrix():
    gated = parse_shape("8,2,64,32").problem
    plain = gated.evolve(activation=ActivationType.RELU2)
    assert floor_of(gated, 3, TABLE).weight_bytes == 1.5 * floor_of(plain, 3, TABLE).weight_bytes
    assert floor_of(gated, 3, TABLE).flop == 1.5 * floor_of(plain, 3, TABLE).flop


def test_eight_bits_multiply_faster_where_that_is_known():
    bf16, fp8 = (parse_shape("8,2,4096,14336").problem.evolve(quant=quant) for quant in (QuantAlgo.NONE, BLOCK))
    slow = TABLE.evolve(fp8_tflop_s=None)
    times = [floor_of(p, 16384, c).microseconds for p, c in ((fp8, TABLE), (bf16, TABLE), (fp8, slow))]
    assert times[0] == pytest.approx(times[1] * 790 / 1500)
    assert times[1] == times[2]


def test_expected_experts():
    assert expected_experts(128, 8, 1) == pytest.approx(8)
    assert expected_experts(8, 2, 4) == pytest.approx(8 * (1 - 0.75**4))
    assert expected_experts(16, 16, 1) == 16


def test_unknown_sizes_have_no_floor():
    problem = parse_shape("8,2,64,32").problem.evolve(top_k=None)
    with pytest.raises(ValueError, match="a floor needs"):
        floor_of(problem, 1, TABLE)
