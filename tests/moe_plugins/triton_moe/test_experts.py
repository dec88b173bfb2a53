"""The Triton backend keeps every promise of a backend on each of its paths: interpreted at small sizes, or on a GPU."""

from dataclasses import dataclass, replace
from types import MappingProxyType

import pytest
import torch

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.vocabulary import DType
from moe_core.execution import BindError, MoERunContext, ParallelGroups
from moe_core.fused_weights import FusedExpertWeights
from moe_core.testing.backends import CHECKS, BackendTrial, assert_matches_twin
from moe_core.testing.numerics import assert_bitwise_equal, assert_close, tolerance_in
from moe_core.testing.problems import ACTIVATIONS, small_problem
from moe_plugins.triton_moe import CANDIDATES

ANY, GLUON, *_ = CANDIDATES
BY_PATH = {candidate.identity.split(".")[2]: candidate for candidate in CANDIDATES if "gluon" not in candidate.identity}
# Few and wide tiles: the interpreter takes milliseconds for each.
TILES = MappingProxyType(
    {
        "no_sort": {"up_neurons": 16, "down_columns": 32},
        "swap_ab": {"up": {"rows": 16}, "down": {"rows": 16}},
        "grouped": {"up": {"rows": 64, "columns": 32}, "down": {"rows": 64, "columns": 32}},
    }
)
REAL = MappingProxyType({"hidden_size": 512, "intermediate_size": 384, "num_experts": 16, "top_k": 4})
TOKENS = (1, 7, 64, 300, 2000)
needs_interpreter = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles here")
needs_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
)


@dataclass(frozen=True)
class Trial(BackendTrial):
    """A trial on one path."""

    path: str = ""

    def bind(self, *args, **options):
        backend = super().bind(*args, **options)
        if self.path:
            backend.use({"path": self.path, "config": TILES[self.path]})
        return backend


def tiny(path, **fields):
    sizes = {"hidden_size": 32, "intermediate_size": 16, "num_experts": 4, "top_k": 2}
    problem = small_problem(**{"dtype_act": DType.FLOAT16, **sizes, **fields})
    return Trial(BY_PATH[path], problem, path=path)


@needs_interpreter
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("path", TILES)
def test_conforms_interpreted(path, check):
    check(tiny(path, **ACTIVATIONS["swiglu_bias"]))


@needs_interpreter
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("path", TILES)
def test_activations(path, activation):
    trial = tiny(path, **ACTIVATIONS[activation])
    backend, batch = trial.bind(), trial.batch(7)
    assert_close(trial.run(backend, batch), trial.expected(batch), trial.tolerance)


@needs_interpreter
@pytest.mark.parametrize("path", TILES)
def test_odd_sizes(path):
    assert_matches_twin(tiny(path, hidden_size=40, intermediate_size=24, num_experts=5, top_k=3))


def test_the_kernels_follow_the_number_of_tokens():
    backend = BackendTrial(ANY, small_problem(**REAL)).bind()
    assert [backend.choice(n).path for n in (1, 64)] == ["no_sort", "swap_ab"]
    assert backend.choice(100_000).path in ("grouped", "grouped_gluon")
    assert backend.choice(1).source == "cost_model"


def fused(trial, interleaved=False):
    w = trial.weights
    fc1 = torch.stack([w.w1_EIH, w.w3_EIH], dim=2).flatten(1, 2)
    return FusedExpertWeights(fc1, w.w2_EHI, interleaved=True) if interleaved else FusedExpertWeights.joined(w)


def test_fused_weights_are_taken_as_they_are():
    trial = tiny("swap_ab")
    backend, given = trial.bind(), fused(trial)
    backend.prepare_fused(given)
    held = backend.prepared.weights
    assert (held.fc1_EGH.data_ptr(), held.w2_EHI.data_ptr()) == (given.fc1_EGH.data_ptr(), given.w2_EHI.data_ptr())


@pytest.mark.parametrize("order", ["interleaved", "transposed"])
def test_fused_weights_in_another_order_are_copied_once(order):
    trial = tiny("swap_ab")
    given = fused(trial, interleaved=order == "interleaved")
    if order == "transposed":
        given = replace(given, fc1_EGH=given.fc1_EGH.mT.contiguous().mT)
    backend = trial.bind()
    backend.prepare_fused(given)
    held = backend.prepared.weights
    assert_bitwise_equal(held.fc1_EGH, fused(trial).fc1_EGH)
    address = held.fc1_EGH.data_ptr()
    backend.prepare_fused(replace(given, fc1_EGH=-given.fc1_EGH))
    assert backend.prepared.weights.fc1_EGH.data_ptr() == address
    assert_bitwise_equal(backend.prepared.weights.fc1_EGH, -fused(trial).fc1_EGH)


def test_weights_are_loaded_again_where_they_were():
    trial = tiny("grouped", **ACTIVATIONS["swiglu_bias"])
    backend = trial.bind()
    before = [tensor.data_ptr() for tensor in backend.prepared.tensors()]
    backend.prepare(trial.weights.map(torch.neg))
    assert [tensor.data_ptr() for tensor in backend.prepared.tensors()] == before
    assert_bitwise_equal(backend.prepared.weights.w2_EHI, -trial.weights.w2_EHI)


@needs_interpreter
def test_one_copy_serves_two_backends():
    first, second = tiny("swap_ab"), tiny("grouped")
    owner = first.bind()
    sharer = second.bind()
    sharer.adopt(owner.prepared)
    assert sharer.prepared is owner.prepared
    others = first.weights.map(torch.neg)
    owner.prepare(others)
    sharer.adopt(owner.prepared)
    batch = second.batch(5)
    assert_close(second.run(sharer, batch), second.expected(batch, others), second.tolerance)


@needs_interpreter
@pytest.mark.parametrize("path", ["no_sort", "swap_ab", "grouped"])
def test_rows_are_left_unfinalized(path):
    trial = tiny(path)
    backend, batch = trial.bind(), trial.batch(5)
    batch.token_selected_slots[1, 0] = -1
    left = backend.run_unfinalized(batch)
    row_NK = left.expanded_idx_to_permuted_idx.view(5, 2)
    assert row_NK[1, 0] == -1
    scales_NK = torch.where(row_NK >= 0, batch.token_final_scales, 0)
    rows_NKH = torch.where((row_NK >= 0).unsqueeze(-1), left.gemm2_output[row_NK.clamp(min=0)].float(), 0)
    found = (rows_NKH * scales_NK.unsqueeze(-1)).sum(dim=1)
    assert_close(found, trial.expected(batch), trial.tolerance)


def test_wrong_types_are_refused():
    trial = tiny("swap_ab")
    batch = trial.batch(3)
    wrong = MoERunContext(batch.x.float(), batch.token_selected_slots, batch.token_final_scales)
    with pytest.raises(ValueError, match=r"found rows of torch\.float32.*needed torch\.float16"):
        trial.bind().run_moe(wrong)


@needs_interpreter
@pytest.mark.parametrize("misfit", ["rows", "width", "scales"])
def test_shapes_that_do_not_fit_are_refused(misfit):
    trial = tiny("no_sort")
    backend, batch = trial.bind(), trial.batch(3)
    changed = {
        "rows": {"x": batch.x[:2]},
        "width": {"x": batch.x[:, :-8]},
        "scales": {"token_final_scales": batch.token_final_scales[:, :1]},
    }[misfit]
    with pytest.raises(ValueError, match=r"found rows \[.*needed \[N, .*on one device"):
        backend.run_moe(replace(batch, **changed))


def test_gluon_is_refused_where_it_cannot_run():
    with pytest.raises(BindError, match="Gluon kernels need"):
        BackendTrial(GLUON, small_problem()).bind()


def test_what_the_tuner_tries_can_be_used_and_written():
    trial = tiny("swap_ab")
    backend = trial.bind()
    configs = backend.configs(16)
    assert 1 < len(configs) <= 24
    for config in configs:
        backend.use(config)
        assert (backend.choice(16).path, backend.choice(16).config) == (config["path"], config["config"])
    for path, tiles, why in (
        ("no_sort", {}, "asked for path no_sort"),
        ("swap_ab", {"up": {"row": 8}}, "asked for tiles of {'row': 8}; needed fields among rows,"),
        ("swap_ab", {"up": [8]}, "asked for tiles of \\[8\\]; needed fields among rows,"),
        ("swap_ab", {"rows": 8}, "asked for rows of swap_ab; needed up and down"),
        ("swap_ab", {"up": {"rows": 16}, "down": {"rows": 8}}, "one map serves both kernels"),
    ):
        with pytest.raises(ValueError, match=why):
            backend.use({"path": path, "config": tiles})
    with pytest.raises(ValueError, match="asked for tiles; needed path and config"):
        backend.use({"path": "swap_ab", "tiles": {"up": {"rows": 8}}})
    backend.use(None)
    assert backend.choice(16).source == "cost_model"


# On a GPU.


@pytest.mark.gpu
@needs_hopper
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("candidate", CANDIDATES, ids=str)
def test_conforms_on_hopper(candidate, check):
    check(BackendTrial(candidate, small_problem(), torch.device("cuda", 0)))


@pytest.mark.gpu
@needs_hopper
@pytest.mark.parametrize(
    ("activation", "dtype"),
    [("swiglu", DType.BFLOAT16), ("swiglu_bias", DType.BFLOAT16), ("relu2_with_bias", DType.FLOAT16)],
)
@pytest.mark.parametrize("candidate", CANDIDATES, ids=str)
def test_every_number_of_tokens_on_hopper(candidate, activation, dtype):
    problem = small_problem(**{**REAL, **ACTIVATIONS[activation], "dtype_act": dtype})
    trial = BackendTrial(candidate, problem, torch.device("cuda", 0))
    backend = trial.bind()
    for num_tokens in TOKENS:
        batch = trial.batch(num_tokens)
        for _ in range(2):  # compiled, and repeated from its recording
            assert_close(trial.run(backend, batch), trial.expected(batch), trial.tolerance)


@pytest.mark.gpu
@needs_hopper
@pytest.mark.parametrize("num_tokens", TOKENS)
@pytest.mark.parametrize("candidate", CANDIDATES, ids=str)
def test_is_captured_in_a_cuda_graph(candidate, num_tokens):
    trial = BackendTrial(candidate, small_problem(**REAL), torch.device("cuda", 0))
    backend, batch, other = trial.bind(), trial.batch(num_tokens), trial.batch(num_tokens + 1)
    with torch.no_grad():
        backend.run_moe(batch)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = backend.run_moe(batch)
    # Other routes than those that were captured: nothing of the batch may have been read by the host.
    batch.token_selected_slots.copy_(other.token_selected_slots[:num_tokens])
    graph.replay()
    assert_close(captured, trial.expected(batch), trial.tolerance)
    others = trial.weights.map(lambda t: t.roll(1, dims=0))
    backend.prepare(others)
    graph.replay()
    assert_close(captured, trial.expected(batch, others), trial.tolerance)


@pytest.mark.gpu
@needs_hopper
def test_every_tile_that_the_tuner_tries_is_right():
    trial = BackendTrial(ANY, small_problem(**REAL), torch.device("cuda", 0))
    backend = trial.bind()
    for num_tokens in (4, 64, 2000):
        batch = trial.batch(num_tokens)
        expected = trial.expected(batch)
        for config in backend.configs(num_tokens):
            backend.use(config)
            assert_close(trial.run(backend, batch), expected, tolerance_in(trial.dtype, ANY.tolerance))


@pytest.mark.gpu
@needs_hopper
def test_streams_do_not_share_memory():
    trial = BackendTrial(ANY, small_problem(**REAL), torch.device("cuda", 0))
    backend = trial.bind()
    batches = [trial.batch(64), replace(trial, seed=9).batch(64)]
    expected = [trial.expected(batch) for batch in batches]
    streams = [torch.cuda.Stream() for _ in batches]
    torch.cuda.synchronize()
    for _ in range(50):
        found = []
        for stream, batch in zip(streams, batches, strict=True):
            with torch.cuda.stream(stream), torch.no_grad():
                found.append(backend.run_moe(batch))
        torch.cuda.synchronize()
        for actual, wanted in zip(found, expected, strict=True):
            assert_close(actual, wanted, trial.tolerance)


@pytest.mark.gpu
@needs_hopper
def test_a_share_of_the_experts_skips_the_others():
    trial = BackendTrial(ANY, small_problem(**REAL), torch.device("cuda", 0))
    split = MoEDeployment(ep_size=3)
    for num_tokens in TOKENS:
        batch = trial.batch(num_tokens)
        parts = [
            trial.run(trial.bind(split, ParallelGroups(rank=rank, ep_rank=rank)), batch).float() for rank in range(3)
        ]
        assert_close(torch.stack(parts).sum(dim=0), trial.expected(batch), trial.tolerance)
