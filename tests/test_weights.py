"""Expert weights: shares of ranks, and shapes that do not fit."""

from dataclasses import replace

import pytest
import torch

from moe_core.contract.vocabulary import QuantAlgo
from moe_core.quantization import dequantized, weight_format
from moe_core.testing.numerics import assert_bitwise_equal
from moe_core.testing.problems import small_problem
from moe_core.testing.weights import calibrated, random_weights
from moe_core.weights import ExpertWeights, misfits

SIZES = {"num_experts": 8, "hidden_size": 64, "intermediate_size": 32}


def test_shares_of_expert_parallel_ranks_partition_the_experts():
    weights = random_weights(small_problem(bias=True))
    shares = [weights.of_slots(0, 3), weights.of_slots(3, 8)]
    for name, whole in weights.tensors().items():
        assert_bitwise_equal(torch.cat([share.tensors()[name] for share in shares]), whole)


def test_shares_of_tensor_parallel_ranks_partition_the_intermediate_size():
    weights = random_weights(small_problem(bias=True, intermediate_size=10))
    shares = [weights.of_tp_rank(rank, 3) for rank in range(3)]
    assert [share.w1_EIH.shape[1] for share in shares] == [4, 4, 2]
    for name, dim in {"w1_EIH": 1, "w3_EIH": 1, "w2_EHI": 2, "b1_EI": 1, "b3_EI": 1}.items():
        whole = torch.cat([share.tensors()[name] for share in shares], dim=dim)
        assert_bitwise_equal(whole, weights.tensors()[name])


def test_the_output_bias_is_added_by_one_tensor_parallel_rank():
    weights = random_weights(small_problem(bias=True))
    assert [weights.of_tp_rank(rank, 2).b2_EH is None for rank in range(2)] == [False, True]


def test_weights_that_fit():
    assert misfits(random_weights(small_problem(bias=True)), gated=True, **SIZES) == ()
    assert misfits(random_weights(small_problem(activation="Relu2", bias=True)), gated=False, **SIZES) == ()


def test_every_misfit_is_told():
    weights = ExpertWeights(w1_EIH=torch.zeros(8, 64, 32), w2_EHI=torch.zeros(8, 64, 32), b2_EH=torch.zeros(7, 64))
    assert misfits(weights, gated=True, **SIZES) == (
        "w1_EIH: found [8, 64, 32], needed [8, 32, 64]",
        "b2_EH: found [7, 64], needed [8, 64]",
        "w3_EIH: found nothing, needed [8, 32, 64]: the activation is gated",
    )


def test_an_activation_that_is_not_gated_has_no_up_half():
    weights = random_weights(small_problem(bias=True))
    assert [line.partition(":")[0] for line in misfits(weights, gated=False, **SIZES)] == ["w3_EIH", "b3_EI"]


QUANTIZED = small_problem(quant="NVFP4", bias=True)
NVFP4 = weight_format(QuantAlgo.NVFP4)


def test_scales_of_inputs_follow_the_experts():
    weights = calibrated(random_weights(small_problem(quant="FP8")))
    assert [name for name in weights.tensors() if "input" in name] == ["fc1_input_scale_E", "fc2_input_scale_E"]
    assert not weights.given().keys() & weights.input_scales().keys()
    for share in (weights.of_slots(2, 5), weights.of_slots(2, 5).of_tp_rank(1, 2)):
        assert_bitwise_equal(share.fc2_input_scale_E, torch.full((3,), 0.0625))
    assert weights.to("cpu", torch.bfloat16).fc1_input_scale_E.dtype is torch.float32
    assert misfits(weights, gated=True, format_=weight_format(QuantAlgo.FP8), **SIZES) == ()


def test_scales_of_inputs_that_do_not_fit():
    given = calibrated(random_weights(small_problem(quant="FP8")), fc1_input=0.0)
    unlike = replace(given, fc2_input_scale_E=torch.arange(1.0, 9.0))
    assert misfits(unlike, gated=True, format_=weight_format(QuantAlgo.FP8), **SIZES) == (
        "fc1_input_scale_E: found 0.0 to 0.0, needed one positive number; take the largest of all experts",
        "fc2_input_scale_E: found 1.0 to 8.0, needed one positive number; take the largest of all experts",
    )
    short = replace(given, fc1_input_scale_E=torch.ones(2).half(), fc2_input_scale_E=None)
    assert misfits(short, gated=True, format_=weight_format(QuantAlgo.FP8), **SIZES) == (
        "fc1_input_scale_E: found [2] of torch.float16, needed [8] of torch.float32",
    )
    rows = calibrated(random_weights(small_problem(quant="FP8_PER_CHANNEL_PER_TOKEN")))
    lines = misfits(rows, gated=True, format_=weight_format(QuantAlgo.FP8_PER_CHANNEL_PER_TOKEN), **SIZES)
    assert [line.partition(",")[0] for line in lines] == [
        "fc1_input_scale_E: found a tensor", "fc2_input_scale_E: found a tensor"
    ]  # fmt: skip


def test_parts_of_quantized_matrices_have_names_of_their_own():
    weights = random_weights(QUANTIZED)
    assert list(weights.given()) == ["w1_EIH", "w2_EHI", "w3_EIH", "b1_EI", "b3_EI", "b2_EH"]
    assert list(weights.tensors())[:4] == ["w1_EIH.data", "w1_EIH.scale", "w1_EIH.global_scale", "w2_EHI.data"]


def test_quantized_matrices_keep_their_format_in_another_type():
    moved = random_weights(QUANTIZED).to("cpu", torch.float32)
    assert moved.b1_EI.dtype is torch.float32
    assert misfits(moved, gated=True, format_=NVFP4, **SIZES) == ()


def test_shares_of_quantized_experts_partition_them():
    weights = random_weights(QUANTIZED)
    by_slot = [weights.of_slots(0, 3), weights.of_slots(3, 8)]
    by_rank = [weights.of_tp_rank(rank, 2) for rank in range(2)]
    for name, dim in {"w1_EIH": 1, "w3_EIH": 1, "w2_EHI": 2}.items():
        whole = getattr(weights, name).dequantize()
        for shares, along in ((by_slot, 0), (by_rank, dim)):
            parts = [getattr(share, name).dequantize() for share in shares]
            assert_bitwise_equal(torch.cat(parts, dim=along), whole)


def test_shares_may_begin_within_a_block_but_not_within_a_byte():
    weights = random_weights(QUANTIZED)
    share = weights.of_tp_rank(1, 4)
    assert misfits(share, gated=True, format_=NVFP4, **{**SIZES, "intermediate_size": 8}) == ()
    assert_bitwise_equal(share.w2_EHI.dequantize(), weights.w2_EHI.dequantize()[..., 8:16])
    with pytest.raises(ValueError, match="a cut at 1 of 32 parts two codes that share a byte in e2m1"):
        weights.of_tp_rank(0, 32)


def test_every_misfit_of_quantized_experts_is_told():
    mxfp4, plain = random_weights(small_problem(quant="W4A16_MXFP4")), random_weights(small_problem())
    narrow = random_weights(small_problem(quant="NVFP4", hidden_size=32))
    weights = ExpertWeights(w1_EIH=narrow.w1_EIH, w2_EHI=mxfp4.w2_EHI, w3_EIH=plain.w3_EIH)
    assert misfits(weights, gated=True, format_=NVFP4, **SIZES) == (
        "w1_EIH.data: found [8, 32, 16], needed [8, 32, 32]",
        "w1_EIH.scale: found [8, 32, 2], needed [8, 32, 4]",
        "w2_EHI: found e2m1 with ue8m0 scales per 1 x 32, needed e2m1 with e4m3 scales per 1 x 16",
        "w3_EIH: found torch.bfloat16, needed e2m1 with e4m3 scales per 1 x 16",
    )
    assert misfits(mxfp4, gated=True, **SIZES)[0] == (
        "w1_EIH: found e2m1 with ue8m0 scales per 1 x 32, needed a matrix that is not quantized"
    )


@pytest.mark.parametrize("quant", QuantAlgo)
def test_random_weights_are_in_the_format_of_the_problem(quant):
    sizes = {"num_experts": 2, "hidden_size": 128, "intermediate_size": 256}
    problem = small_problem(quant=quant, top_k=1, bias=True, **sizes)
    weights = random_weights(problem)
    assert misfits(weights, gated=True, format_=weight_format(quant), **sizes) == ()
    assert weights.b1_EI.dtype is torch.bfloat16
    plain = random_weights(problem.evolve(quant="NONE"), dtype=torch.float32)
    error = dequantized(weights.w2_EHI, torch.float32) - plain.w2_EHI
    assert error.norm() < 0.2 * plain.w2_EHI.norm()


@pytest.mark.parametrize(("quant", "has_zero_points"), [("W4A16_AWQ", True), ("W4A16_GPTQ", False)])
def test_random_weights_of_awq_have_zero_points(quant, has_zero_points):
    weights = random_weights(small_problem(quant=quant, hidden_size=128, intermediate_size=128))
    assert (weights.w1_EIH.zero is not None) is has_zero_points


@pytest.mark.parametrize("unknown", ["quant", "num_experts", "hidden_size", "activation"])
def test_random_weights_of_an_unknown_problem(unknown):
    with pytest.raises(ValueError, match="random weights need quant, num_experts"):
        random_weights(small_problem().evolve(**{unknown: None}))


def test_random_weights_repeat_for_a_seed_and_have_the_asked_scale():
    problem = small_problem(hidden_size=256)
    one, same, other = (random_weights(problem, seed=seed, dtype=torch.float32) for seed in (1, 1, 2))
    assert_bitwise_equal(one.w1_EIH, same.w1_EIH)
    assert not one.w1_EIH.equal(other.w1_EIH)
    assert abs(one.w1_EIH.std().item() * 256**0.5 - 1) < 0.02
    assert abs(random_weights(problem, scale=0.5, dtype=torch.float32).w2_EHI.std().item() / 0.5 - 1) < 0.02
