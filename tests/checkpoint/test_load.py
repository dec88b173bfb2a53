"""Experts from checkpoints of every family: whole, in shares of ranks, read once and only where needed."""

import pytest
import torch
from safetensors.torch import save_file

from moe_core.checkpoint import Checkpoint, load_layer
from moe_core.checkpoint.files import OpenFiles
from moe_core.contract.partition import expert_partition, expert_start
from moe_core.quantization import dequantized
from moe_core.testing.numerics import assert_bitwise_equal

LAYER = 3


def test_every_family_loads_right(family, assert_same_experts):
    assert_same_experts(load_layer(family.checkpoint, LAYER, family.problem), family.weights)


def test_ranks_load_their_shares(family, assert_same_experts):
    """Expert parallelism over two, uneven with three experts, times tensor parallelism over two."""
    count = family.problem.num_experts
    for ep_rank, size in enumerate(expert_partition(count, 2)):
        start = expert_start(count, 2, ep_rank)
        for tp_rank in range(2):
            share = load_layer(family.checkpoint, LAYER, family.problem, slots=(start, start + size), tp=(tp_rank, 2))
            assert_same_experts(share, family.weights.of_slots(start, start + size).of_tp_rank(tp_rank, 2))


@pytest.mark.parametrize("tp_size", [4, 8, 16])
def test_ranks_load_shares_that_begin_within_a_block(family, tp_size, assert_same_experts):
    """Of scales, of packed words, of both: the same as a cut of the whole, which is the cut of the values."""
    whole = family.weights.w2_EHI
    for rank in range(tp_size):
        share = load_layer(family.checkpoint, LAYER, family.problem, slots=(1, 2), tp=(rank, tp_size))
        assert_same_experts(share, family.weights.of_slots(1, 2).of_tp_rank(rank, tp_size))
        width = whole.shape[2] // tp_size
        values = dequantized(whole, torch.float32)[1:2, :, rank * width : (rank + 1) * width]
        assert_bitwise_equal(dequantized(share.w2_EHI, torch.float32), values)


@pytest.mark.parametrize("family_name", ["Qwen", "transformers 5", "gpt-oss"])
def test_the_last_tensor_parallel_share_may_be_narrower(written, family_name, assert_same_experts):
    given = written(family_name, intermediate_size=10)
    for rank in range(3):
        share = load_layer(given.checkpoint, LAYER, given.problem, tp=(rank, 3))
        assert_same_experts(share, given.weights.of_tp_rank(rank, 3))


def test_the_last_word_of_packed_codes_may_be_half_full(written, assert_same_experts):
    given = written("compressed-tensors int4 rows", hidden_size=20)
    assert_same_experts(load_layer(given.checkpoint, LAYER, given.problem), given.weights)


def test_nothing_but_the_share_is_read_and_no_more_than_a_matrix_at_once(written, monkeypatch):
    given = written("DeepSeek FP8")
    read, sizes = OpenFiles.read, []

    def counted(self, key, index=()):
        part = read(self, key, index)
        sizes.append(part.nbytes)
        return part

    monkeypatch.setattr(OpenFiles, "read", counted)
    share = load_layer(given.checkpoint, LAYER, given.problem, slots=(1, 3), tp=(1, 2))
    assert sum(sizes) == sum(tensor.nbytes for tensor in share.tensors().values())
    assert max(sizes) == 128 * 128


def test_files_that_a_rank_does_not_read_need_not_be_there(written, assert_same_experts):
    given = written("Mixtral")
    first = {k: t for k, t in given.tensors.items() if ".experts.0." in k or ".experts.1." in k}
    others = {k: t for k, t in given.tensors.items() if k not in first}
    paired = [pair for two in zip(first.items(), others.items(), strict=False) for pair in two]
    rewritten = given.rewritten(dict(paired))
    (given.folder / "model-00002-of-00002.safetensors").unlink()
    share = load_layer(rewritten.checkpoint, LAYER, given.problem, slots=(0, 2))
    assert_same_experts(share, given.weights.of_slots(0, 2))


def test_progress_is_told_after_every_expert(written):
    given, told = written("Mixtral"), []
    load_layer(given.checkpoint, LAYER, given.problem, slots=(1, 4), progress=lambda *numbers: told.append(numbers))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_zero_points_stay_where_groups_are_not_symmetric(written):
    for name, has_zeros in (("GPTQ", False), ("GPTQ with zero points", True), ("AWQ", True)):
        given = written(name)
        loaded = load_layer(given.checkpoint, LAYER, given.problem)
        assert (loaded.w1_EIH.zero is not None) is has_zeros


def test_static_scales_of_inputs_are_the_largest_of_the_layer(written):
    """Whichever experts a rank holds: all of them multiply tokens that were quantized once."""
    given = written("ModelOpt FP8")
    largest = [
        max(t for k, t in given.tensors.items() if "input_scale" in k and ("down" in k) is down)
        for down in (False, True)
    ]
    for slots in ((0, 4), (0, 1), (2, 4)):
        loaded = load_layer(given.checkpoint, LAYER, given.problem, slots=slots)
        for scale, expected in zip(loaded.input_scales().values(), largest, strict=True):
            assert_bitwise_equal(scale, expected.repeat(slots[1] - slots[0]))


@pytest.mark.parametrize("family_name", ["FP8, dynamic", "ModelOpt NVFP4", "ModelOpt int4", "compressed-tensors NVFP4"])
def test_inputs_that_are_scaled_as_they_come_or_not_at_all_have_no_static_scales(written, family_name):
    given = written(family_name)
    assert load_layer(given.checkpoint, LAYER, given.problem).input_scales() == {}


def test_single_files_and_unindexed_folders(written, assert_same_experts):
    given = written("Qwen")
    (given.folder / "model.safetensors.index.json").unlink()
    assert_same_experts(load_layer(given.checkpoint, LAYER, given.problem), given.weights)
    one = given.folder / "model.safetensors"
    save_file({k: t.contiguous() for k, t in given.tensors.items()}, one)
    for path in (given.folder, one):
        assert_same_experts(load_layer(Checkpoint.open(path), LAYER, given.problem), given.weights)


def test_slots_and_ranks_that_do_not_exist(written):
    given = written("Qwen")
    with pytest.raises(ValueError, match=r"slots: found \(2, 5\), needed .* within 0 … 4"):
        load_layer(given.checkpoint, LAYER, given.problem, slots=(2, 5))
    with pytest.raises(ValueError, match="rank 2 is not one of 2"):
        load_layer(given.checkpoint, LAYER, given.problem, tp=(2, 2))
    with pytest.raises(ValueError, match="hidden_size, quant unknown"):
        load_layer(given.checkpoint, LAYER, given.problem.evolve(hidden_size=None, quant=None))
