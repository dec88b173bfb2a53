"""Shares of tensor-parallel ranks that begin within a block of scales."""

from dataclasses import replace

import pytest
import torch

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.vocabulary import DType, QuantAlgo
from moe_core.environment import preset
from moe_core.execution import ParallelGroups
from moe_core.quantization import dequantized
from moe_core.registry import load_catalog
from moe_core.resolve import can_implement
from moe_core.testing.backends import BackendTrial
from moe_core.testing.numerics import assert_bitwise_equal, assert_close
from moe_core.testing.problems import ACTIVATIONS, small_problem
from moe_core.testing.weights import random_weights
from moe_plugins.triton_moe.quant_candidates import CANDIDATES
from moe_plugins.triton_moe.quant_shares import from_whole_blocks

BLOCKS, MXFP4, MXFP4_FP8 = QuantAlgo.FP8_BLOCK_SCALES, QuantAlgo.W4A16_MXFP4, QuantAlgo.W4A8_MXFP4_FP8
NVFP4, AWQ, GPTQ = QuantAlgo.NVFP4, QuantAlgo.W4A16_AWQ, QuantAlgo.W4A16_GPTQ
BY_QUANT = {QuantAlgo(candidate.identity.rpartition(".")[2]): candidate for candidate in CANDIDATES}
GROUPS = {AWQ: 128, GPTQ: 128}
H200 = preset("h200")
FP8_TILES = {
    "no_sort": {"up_neurons": 64, "up_block": 128, "down_columns": 128, "down_block": 128},
    "swap_ab": {"up": {"rows": 16, "columns": 128}, "down": {"rows": 16, "columns": 128}},
    "grouped": {"up": {"passes": 2}, "down": {"columns": 128}},
}
WORD_TILES = {
    "no_sort": {"up_rows": 128, "up_stages": 1, "down_columns": 64, "down_stages": 1},
    "swap_ab": {"up": {"rows": 16, "weight_rows": 128}, "down": {"rows": 16, "weight_rows": 128}},
}
CUDA = torch.cuda.is_available()
on_hopper = pytest.mark.skipif(CUDA and torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU")
SHAPES = [
    (BLOCKS, 768, 4),
    (BLOCKS, 768, 8),
    (BLOCKS, 704, 2),
    (BLOCKS, 704, 4),
    (BLOCKS, 1856, 4),
    (BLOCKS, 2880, 4),
    (MXFP4, 2880, 4),
    (MXFP4, 2880, 8),
    (MXFP4, 704, 4),
    (MXFP4_FP8, 2880, 4),
    (MXFP4_FP8, 704, 4),
    (NVFP4, 768, 8),
    (NVFP4, 1856, 8),
    (NVFP4, 704, 8),
    (AWQ, 768, 4),
    (AWQ, 704, 4),
    (GPTQ, 768, 8),
    (GPTQ, 1856, 4),
]
"""Format, intermediate size and ranks: a share of each begins within a block."""
REFUSED = [
    (BLOCKS, 704, 8, "88", "a multiple of 16"),
    (BLOCKS, 1856, 8, "232", "a multiple of 16"),
    (MXFP4_FP8, 2880, 8, "360", "a multiple of 16"),
    (MXFP4, 2880, 16, "180", "a multiple of 8"),
    (AWQ, 704, 16, "44", "a multiple of 8"),
]


def sized(quant, intermediate_size, **fields):
    sizes = {"hidden_size": 128, "num_experts": 3, "top_k": 2, "quant_group_size": GROUPS.get(quant)}
    return small_problem(
        **{"quant": quant, "dtype_act": DType.FLOAT16, "intermediate_size": intermediate_size, **sizes, **fields}
    )


@pytest.mark.parametrize(("quant", "intermediate_size", "tp_size"), SHAPES)
def test_selected_and_right_to_the_value(quant, intermediate_size, tp_size):
    """What the kernels are given stands for the share's values, and for zeros before them."""
    problem = sized(quant, intermediate_size, bias=True)
    assert can_implement(BY_QUANT[quant], problem, MoEDeployment(environment=H200, tp_size=tp_size))
    whole, width = random_weights(problem), intermediate_size // tp_size
    for rank in range(tp_size):
        share = from_whole_blocks(whole.of_tp_rank(rank, tp_size))
        front = share.w1_EIH.shape[1] - width
        for name, dim in {"w1_EIH": 1, "w3_EIH": 1, "w2_EHI": 2, "b1_EI": 1, "b3_EI": 1}.items():
            values = dequantized(share.given()[name], torch.float32)
            expected = dequantized(whole.given()[name], torch.float32).narrow(dim, rank * width, width)
            assert_bitwise_equal(values.narrow(dim, front, width), expected)
            nothing = values.narrow(dim, 0, front)
            assert_bitwise_equal(nothing.abs(), torch.zeros_like(nothing))
        assert share.w2_EHI.offset == share.w1_EIH.offset == (0, 0)


def test_a_share_of_whole_blocks_is_taken_as_it_is():
    share = random_weights(sized(BLOCKS, 768)).of_tp_rank(1, 3)
    assert from_whole_blocks(share) is share


def test_matrices_that_begin_apart():
    weights = random_weights(sized(BLOCKS, 768))
    other = weights.of_tp_rank(0, 4)
    with pytest.raises(ValueError, match="needed w2_EHI to begin with the others"):
        from_whole_blocks(replace(weights.of_tp_rank(1, 4), w2_EHI=other.w2_EHI))


@pytest.mark.parametrize(("quant", "intermediate_size", "tp_size", "found", "needed"), REFUSED)
def test_refused_with_the_arithmetic(quant, intermediate_size, tp_size, found, needed):
    problem = sized(quant, intermediate_size)
    answer = can_implement(BY_QUANT[quant], problem, MoEDeployment(environment=H200, tp_size=tp_size))
    (rejection,) = answer.rejections
    assert (rejection.fact, str(rejection.found), rejection.needed) == ("intermediate_size_per_tp", found, needed)
    assert rejection.hint
    twin = load_catalog().get("moe_core.torch.reference_loop.any")
    assert can_implement(twin, problem, MoEDeployment(environment=H200, tp_size=tp_size))


@on_hopper
@pytest.mark.parametrize("activation", ["swiglu_bias", "relu2_with_bias"])
@pytest.mark.parametrize(
    ("quant", "intermediate_size", "tp_size", "path"),
    [
        (BLOCKS, 384, 2, "no_sort"),
        (BLOCKS, 384, 2, "swap_ab"),
        (BLOCKS, 384, 2, "grouped"),
        (BLOCKS, 288, 3, "swap_ab"),
        (MXFP4, 144, 3, "no_sort"),
        (MXFP4, 144, 3, "swap_ab"),
        (MXFP4_FP8, 288, 3, "swap_ab"),
        (NVFP4, 48, 2, "swap_ab"),
        (AWQ, 192, 2, "swap_ab"),
        (GPTQ, 192, 2, "no_sort"),
    ],
)
def test_ranks_sum_to_the_whole(quant, intermediate_size, tp_size, path, activation):
    problem = sized(quant, intermediate_size, **ACTIVATIONS[activation])
    trial = BackendTrial(BY_QUANT[quant], problem, torch.device("cuda", 0) if CUDA else torch.device("cpu"))
    batch, outputs = trial.batch(5), []
    for rank in range(tp_size):
        backend = trial.bind(MoEDeployment(tp_size=tp_size), ParallelGroups(rank=rank, tp_rank=rank))
        backend.use({"path": path, "config": (FP8_TILES if quant is BLOCKS else WORD_TILES)[path]})
        outputs.append(trial.run(backend, batch).float())
    assert_close(sum(outputs), trial.expected(batch), trial.tolerance)
