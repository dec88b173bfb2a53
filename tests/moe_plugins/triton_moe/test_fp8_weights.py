"""e4m3 weights in blocks of 128 columns: every element is where the kernels look for it, and the rest is zero."""

import pytest
import torch

from moe_core.contract.vocabulary import QuantAlgo
from moe_core.testing.numerics import assert_bitwise_equal
from moe_core.testing.problems import small_problem
from moe_core.testing.weights import random_weights
from moe_plugins.triton_moe.fp8_weights import in_blocks
from moe_plugins.triton_moe.quant_prepared import prepare_fp8


def _codes(*shape):
    """Bytes that are never zero."""
    return torch.randint(1, 127, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def _found(blocks, columns):
    """The bytes ``[L, N, K]`` at the places that the layout promises, and those of the padding."""
    num_local, num_blocks, num_rows, width = blocks.shape
    e, n, k = torch.arange(num_local)[:, None, None], torch.arange(num_rows)[:, None], torch.arange(num_blocks * width)
    found = blocks.view(torch.uint8).flatten()[((e * num_blocks + k // 128) * num_rows + n) * 128 + k % 128]
    return found[..., :columns], found[..., columns:]


@pytest.mark.parametrize("columns", [16, 128, 176, 704, 768])
def test_elements_lie_by_block(columns):
    codes = _codes(3, 5, columns)
    blocks = in_blocks(codes.view(torch.float8_e4m3fn))
    assert (blocks.shape, blocks.dtype) == ((3, -(-columns // 128), 5, 128), torch.float8_e4m3fn)
    assert blocks.is_contiguous()
    found, padding = _found(blocks, columns)
    assert_bitwise_equal(found, codes)
    assert not padding.any()


def test_matrices_lie_above_each_other():
    codes = _codes(2, 7, 176)
    gate, up = codes.view(torch.float8_e4m3fn).split([3, 4], dim=1)
    assert_bitwise_equal(_found(in_blocks(gate, up), 176)[0], codes)


def test_matrices_may_lie_anyhow():
    codes = _codes(2, 176, 5)
    assert_bitwise_equal(_found(in_blocks(codes.view(torch.float8_e4m3fn).mT), 176)[0], codes.mT)


def test_a_layer_knows_its_sizes():
    problem = small_problem(
        quant=QuantAlgo.FP8_BLOCK_SCALES, hidden_size=176, intermediate_size=272, num_experts=3, top_k=2
    )
    given = random_weights(problem)
    weights = prepare_fp8(given, torch.bfloat16)
    assert weights.sizes == (3, 176, 272)
    for blocks, columns, halves in (
        (weights.fc1, 176, (given.w1_EIH, given.w3_EIH)),
        (weights.w2, 272, (given.w2_EHI,)),
    ):
        rows = torch.cat([half.data.view(torch.uint8) for half in halves], dim=1)
        assert_bitwise_equal(_found(blocks, columns)[0], rows)
