"""Expert weights: shares of ranks, and shapes that do not fit."""

import torch

from moe_core.testing.numerics import assert_bitwise_equal
from moe_core.testing.problems import small_problem
from moe_core.testing.weights import random_weights
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


def test_random_weights_repeat_for_a_seed_and_have_the_asked_scale():
    problem = small_problem(hidden_size=256)
    one, same, other = (random_weights(problem, seed=seed, dtype=torch.float32) for seed in (1, 1, 2))
    assert_bitwise_equal(one.w1_EIH, same.w1_EIH)
    assert not one.w1_EIH.equal(other.w1_EIH)
    assert abs(one.w1_EIH.std().item() * 256**0.5 - 1) < 0.02
    assert abs(random_weights(problem, scale=0.5, dtype=torch.float32).w2_EHI.std().item() / 0.5 - 1) < 0.02
