"""torch's grouped multiplication keeps every promise of a backend within its declared limits."""

import pytest
import torch

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.reasons import MoERejectReason as Reason
from moe_core.contract.vocabulary import CudaGraphMode, Device, DType
from moe_core.resolve import can_implement
from moe_core.testing.backends import CHECKS, BackendTrial, assert_gradients_match_twin
from moe_core.testing.numerics import assert_bitwise_equal, assert_close
from moe_core.testing.problems import ACTIVATIONS, small_problem
from moe_plugins.torch_grouped import CANDIDATES

(CANDIDATE,) = CANDIDATES
DTYPES = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_conforms(check, activation):
    check(BackendTrial(CANDIDATE, small_problem(**ACTIVATIONS[activation])))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conforms_in_every_element_type(check, dtype):
    check(BackendTrial(CANDIDATE, small_problem(dtype_act=dtype, num_experts=7, hidden_size=40, intermediate_size=16)))


def environment(sm=90, **packages):
    return MoEEnvironment(device=Device.CUDA if sm else Device.CPU, sm=sm).with_packages(
        **{"torch": "2.13.0"} | packages
    )


def reasons(problem, env, **deployment):
    answer = can_implement(CANDIDATE, problem, MoEDeployment(environment=env, **deployment))
    return [(r.reason, r.fact) for r in answer.rejections]


@pytest.mark.parametrize(
    ("dtype", "hidden_size", "legal"),
    [
        (DType.BFLOAT16, 40, True),
        (DType.BFLOAT16, 36, False),
        (DType.FLOAT16, 36, False),
        (DType.FLOAT32, 36, True),
        (DType.FLOAT32, 38, False),
    ],
)
def test_the_declared_alignment_is_torchs(dtype, hidden_size, legal):
    problem = small_problem(dtype_act=dtype, hidden_size=hidden_size)
    assert reasons(problem, environment()) == ([] if legal else [(Reason.SHAPE_UNALIGNED, "hidden_size")])
    trial = BackendTrial(CANDIDATE, problem)
    if legal:
        CHECKS[0](trial)
    else:
        with pytest.raises(RuntimeError, match="16 bytes"):
            CHECKS[0](trial)


def test_the_shard_and_not_the_whole_must_be_aligned():
    problem = small_problem(intermediate_size=40)
    assert reasons(problem, environment()) == []
    assert (Reason.SHAPE_UNALIGNED, "intermediate_size_per_tp") in reasons(problem, environment(), tp_size=2)


@pytest.mark.parametrize(
    ("sm", "dtype", "legal"),
    [
        (90, DType.BFLOAT16, True),
        (100, DType.BFLOAT16, True),
        (103, DType.BFLOAT16, True),
        (90, DType.FLOAT16, False),
        (80, DType.BFLOAT16, False),
        (120, DType.BFLOAT16, False),
    ],
)
def test_only_the_kernels_without_a_host_loop_are_captured(sm, dtype, legal):
    problem = small_problem(dtype_act=dtype)
    assert reasons(problem, environment(sm)) == []
    refused = {reason for reason, _ in reasons(problem, environment(sm), cuda_graph=CudaGraphMode.FULL)}
    assert refused == (set() if legal else {Reason.CUDA_GRAPH_UNSUPPORTED})


def test_needs_the_torch_that_has_it_and_a_device_that_it_was_built_for():
    assert reasons(small_problem(), environment(torch="2.9.1")) == [(Reason.DEP_MISSING, "package:torch")]
    assert reasons(small_problem(), environment(sm=75)) == [(Reason.SM_UNSUPPORTED, "sm")]
    assert reasons(small_problem(), environment(sm=0)) == []


@pytest.mark.parametrize("activation", ["swiglu", "swiglu_bias", "relu2_with_bias", "situ"])
def test_gradients_match_the_twin(activation):
    assert_gradients_match_twin(
        BackendTrial(CANDIDATE, small_problem(dtype_act=DType.FLOAT32, **ACTIVATIONS[activation]))
    )


@pytest.mark.parametrize("activation", ["swiglu", "swiglu_bias", "relu2_with_bias"])
def test_weights_are_loaded_again_where_they_were(activation):
    trial = BackendTrial(CANDIDATE, small_problem(**ACTIVATIONS[activation]))
    backend = trial.bind()
    addresses = {name: t.data_ptr() for name, t in backend._weights.apart().tensors().items()}
    backend.prepare(trial.weights.map(torch.neg))
    again = backend._weights.apart().tensors()
    assert {name: t.data_ptr() for name, t in again.items()} == addresses
    for name, tensor in trial.weights.tensors().items():
        assert_bitwise_equal(again[name], -tensor)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conforms_on_cuda(check, dtype):
    check(BackendTrial(CANDIDATE, small_problem(dtype_act=dtype), torch.device("cuda", 0)))


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() not in ((9, 0), (10, 0), (10, 3)),
    reason="needs a CUDA device whose kernels need no host loop",
)
@pytest.mark.parametrize("activation", ["swiglu", "swiglu_bias"])
def test_is_captured_in_a_cuda_graph(activation):
    trial = BackendTrial(CANDIDATE, small_problem(**ACTIVATIONS[activation]), torch.device("cuda", 0))
    backend, batch, other = trial.bind(), trial.batch(16), trial.batch(17)
    with torch.no_grad():
        backend.run_moe(batch)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = backend.run_moe(batch)
    # Other routes than those that were captured: nothing of the batch may have been read by the host.
    batch.token_selected_slots.copy_(other.token_selected_slots[:16])
    graph.replay()
    assert_close(captured, trial.expected(batch), trial.tolerance)
    others = trial.weights.map(lambda t: t.roll(1, dims=0))
    backend.prepare(others)
    graph.replay()
    assert_close(captured, trial.expected(batch, others), trial.tolerance)
