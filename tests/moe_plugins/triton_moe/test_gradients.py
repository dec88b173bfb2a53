"""Experts that kernels compute are trained: gradients reach rows, scales and weights, wherever those are."""

from dataclasses import replace
from types import MappingProxyType

import pytest
import torch

from moe_core.contract.vocabulary import DType
from moe_core.fused_weights import FusedExpertWeights
from moe_core.testing.backends import BackendTrial, assert_gradients_match_twin
from moe_core.testing.numerics import assert_bitwise_equal, assert_close
from moe_core.testing.problems import ACTIVATIONS, small_problem
from moe_plugins.torch_grouped import CANDIDATES as TORCH
from moe_plugins.triton_moe import CANDIDATES

BY_PATH = {candidate.identity.split(".")[2]: candidate for candidate in CANDIDATES if "gluon" not in candidate.identity}
# Few and wide tiles: the interpreter takes milliseconds for each.
TILES = MappingProxyType(
    {
        "no_sort": {"up_neurons": 16, "down_columns": 32},
        "swap_ab": {"up": {"rows": 16}, "down": {"rows": 16}},
        "grouped": {"up": {"rows": 64, "columns": 32}, "down": {"rows": 64, "columns": 32}},
    }
)
SOME = ("swiglu_clamp", "swiglu_bias", "relu2_with_bias", "situ", "gelu")
needs_interpreter = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles here")
needs_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
)

(TORCH_GROUPED,) = TORCH


class Trial(BackendTrial):
    """A trial with the tiles of its candidate's path."""

    def bind(self, *args, **options):
        backend = super().bind(*args, **options)
        path = self.candidate.identity.split(".")[2]
        backend.use({"path": path, "config": TILES[path]})
        return backend


def tiny(path="swap_ab", **fields):
    sizes = {"hidden_size": 32, "intermediate_size": 16, "num_experts": 4, "top_k": 2}
    return Trial(BY_PATH[path], small_problem(**{"dtype_act": DType.FLOAT16, **sizes, **fields}))


@needs_interpreter
@pytest.mark.parametrize("path", TILES)
def test_every_path_has_the_twins_gradients(path):
    assert_gradients_match_twin(tiny(path))


@needs_interpreter
@pytest.mark.parametrize("activation", SOME)
def test_activations_have_the_twins_gradients(activation):
    assert_gradients_match_twin(tiny(**ACTIVATIONS[activation]))


@needs_interpreter
def test_what_comes_out_is_the_kernels_own():
    trial = tiny()
    backend, batch = trial.bind(), trial.batch(7)
    expected = trial.run(backend, batch)
    batch.x.requires_grad_()
    assert_bitwise_equal(backend.run_moe(batch).detach(), expected)


def fused_leaves(trial, layout):
    """Parameters as a module has them, the weights that are views of them, and the same weights apart."""
    w = trial.weights
    fc1 = torch.cat([w.w1_EIH, w.w3_EIH], dim=1)
    if layout == "interleaved":
        fc1 = torch.stack([w.w1_EIH, w.w3_EIH], dim=2).flatten(1, 2)
    leaves = [t.clone() for t in (fc1, w.w2_EHI)]
    if layout == "transposed":
        leaves = [t.mT.contiguous() for t in leaves]
    leaves = [t.requires_grad_() for t in leaves]

    def weights():
        views = [t.mT for t in leaves] if layout == "transposed" else leaves
        return FusedExpertWeights(*views, interleaved=layout == "interleaved")

    return leaves, weights


@needs_interpreter
@pytest.mark.parametrize("layout", ["ready", "transposed", "interleaved"])
def test_a_module_is_trained_through_views_of_its_parameters(layout):
    trial = tiny()
    backend, batch = trial.bind(), trial.batch(7)
    leaves, weights = fused_leaves(trial, layout)
    output_grad = trial.batch(8).x[1:]
    for _ in range(2):
        backend.prepare_fused(weights())
        output = backend.run_moe(batch)
        assert_close(output.detach(), trial.expected(batch, weights().apart()).detach(), trial.tolerance)
        actual = torch.autograd.grad(output, leaves, output_grad)
        in_float32 = replace(batch, x=batch.x.float())
        expected = torch.autograd.grad(trial.expected(in_float32, weights().apart()), leaves, output_grad.float())
        for one, other in zip(actual, expected, strict=True):
            assert_close(one, other, trial.tolerance)
        with torch.no_grad():
            for leaf in leaves:
                leaf.mul_(0.5)


@needs_interpreter
def test_a_step_of_parameters_that_stay_changes_nothing_that_is_kept():
    trial = tiny()
    backend = trial.bind()
    _, weights = fused_leaves(trial, "ready")
    backend.prepare_fused(weights())
    version, recorder = backend.prepared.version, backend._recorder
    backend.prepare_fused(weights())
    assert (backend.prepared.version, backend._recorder) == (version, recorder)


@needs_interpreter
def test_only_what_is_wanted_has_gradients():
    trial = tiny()
    backend, batch = trial.bind(), trial.batch(5)
    batch.x.requires_grad_()
    backend.run_moe(batch).sum().backward()
    assert batch.x.grad.any()
    assert batch.token_final_scales.grad is None


@needs_interpreter
def test_weights_and_rows_must_not_change_before_the_gradients():
    trial = tiny()
    backend, batch = trial.bind(), trial.batch(5)
    leaves, weights = fused_leaves(trial, "ready")
    backend.prepare_fused(weights())
    loss = backend.run_moe(batch).sum()
    with torch.no_grad():
        leaves[0].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_weights_that_no_graph_leads_to_are_no_ground_for_gradients():
    trial = tiny()
    weights = trial.weights.map(lambda t: t.clone().requires_grad_())
    with torch.no_grad():
        backend = trial.bind(weights=weights)
    with pytest.raises(RuntimeError, match="copied without a graph; needed prepare"):
        backend.run_moe(trial.batch(3))


def test_torch_without_its_grouped_multiplication_is_named(monkeypatch):
    trial = tiny()
    backend, batch = trial.bind(), trial.batch(3)
    batch.x.requires_grad_()
    monkeypatch.delattr(torch.nn.functional, "grouped_mm")
    with pytest.raises(RuntimeError, match=r"found torch .*, needed 2\.10 or newer.*\n.*try: torch\.no_grad"):
        backend.run_moe(batch)


def test_sizes_that_torch_does_not_take_are_named():
    trial = tiny(hidden_size=36)
    backend, batch = trial.bind(), trial.batch(3)
    batch.x.requires_grad_()
    with pytest.raises(RuntimeError, match="found sizes 36 and 16, needed multiples of 8"):
        backend.run_moe(batch)


def test_rows_that_are_not_finalized_have_none():
    trial = tiny("swap_ab")
    backend, batch = trial.bind(), trial.batch(3)
    batch.x.requires_grad_()
    with pytest.raises(RuntimeError, match=r"not finalized have no gradients; try: torch\.no_grad"):
        backend.run_unfinalized(batch)


@pytest.mark.gpu
@needs_hopper
@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
@pytest.mark.parametrize("activation", ["swiglu", "swiglu_bias", "relu2_with_bias"])
@pytest.mark.parametrize("candidate", CANDIDATES, ids=str)
def test_the_twins_gradients_on_hopper(candidate, activation, dtype):
    problem = small_problem(dtype_act=dtype, **ACTIVATIONS[activation])
    # Torch's own operations compute them, so it is their tolerance and not that of the kernels.
    candidate = candidate.evolve(tolerance=TORCH_GROUPED.tolerance)
    assert_gradients_match_twin(BackendTrial(candidate, problem, torch.device("cuda", 0)))
