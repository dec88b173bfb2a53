"""The reference loop keeps every promise of a backend, for all that it declares."""

import pytest
import torch

from moe_core.contract.vocabulary import ActivationType, DType
from moe_core.execution import MoERunContext
from moe_core.testing.backends import CHECKS, BackendTrial, assert_gradients_match_twin
from moe_core.testing.numerics import assert_bitwise_equal
from moe_core.testing.problems import ACTIVATIONS, small_problem
from moe_plugins.vanilla import CANDIDATES

(CANDIDATE,) = CANDIDATES
DTYPES = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)


def test_every_activation_is_tried():
    tried = {small_problem(**fields).activation for fields in ACTIVATIONS.values()}
    assert tried == set(ActivationType) == set(CANDIDATE.activation.kinds)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_conforms(check, activation):
    check(BackendTrial(CANDIDATE, small_problem(**ACTIVATIONS[activation])))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "sizes", [{"hidden_size": 37, "intermediate_size": 11}, {"num_experts": 5, "top_k": 5}], ids=str
)
def test_matches_its_twin_in_every_element_type_and_at_odd_sizes(dtype, sizes):
    for check in CHECKS:
        check(BackendTrial(CANDIDATE, small_problem(dtype_act=dtype, **sizes)))


def test_an_update_of_the_weights_in_place_is_seen():
    trial = BackendTrial(CANDIDATE, small_problem())
    backend, batch = trial.bind(), trial.batch(7)
    trial.weights.w2_EHI.zero_()
    assert_bitwise_equal(trial.run(backend, batch), torch.zeros_like(batch.x))


def test_no_rows_give_no_rows():
    trial = BackendTrial(CANDIDATE, small_problem())
    batch = trial.batch(1)
    empty = MoERunContext(batch.x[:0], batch.token_selected_slots[:0], batch.token_final_scales[:0])
    assert trial.run(trial.bind(), empty).shape == (0, 64)


@pytest.mark.parametrize("activation", ["swiglu", "swiglu_bias", "relu2_with_bias", "situ"])
def test_gradients_match_the_twin(activation):
    assert_gradients_match_twin(
        BackendTrial(CANDIDATE, small_problem(dtype_act=DType.FLOAT32, **ACTIVATIONS[activation]))
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conforms_on_cuda(check, dtype):
    check(BackendTrial(CANDIDATE, small_problem(dtype_act=dtype), torch.device("cuda", 0)))
