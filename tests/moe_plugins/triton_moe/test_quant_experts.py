"""Every candidate for quantized weights keeps every promise of a backend: interpreted at small sizes, or on a GPU."""

from dataclasses import dataclass, replace
from types import MappingProxyType

import pytest
import torch

from moe_core.communication.rows import RowBytes
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.vocabulary import DType, QuantAlgo
from moe_core.execution import BindError, MoERunContext, ParallelGroups
from moe_core.testing.backends import (
    CHECKS,
    BackendTrial,
    assert_foreign_ids_add_zero,
    assert_leaves_inputs_alone,
)
from moe_core.testing.numerics import assert_bitwise_equal, assert_close
from moe_core.testing.problems import ACTIVATIONS, small_problem
from moe_plugins.triton_moe.quant_candidates import CANDIDATES

BY_QUANT = {QuantAlgo(candidate.identity.rpartition(".")[2]): candidate for candidate in CANDIDATES}
FP8 = (QuantAlgo.FP8_BLOCK_SCALES, QuantAlgo.FP8, QuantAlgo.FP8_PER_CHANNEL_PER_TOKEN)
BLOCKS, MXFP4, AWQ = QuantAlgo.FP8_BLOCK_SCALES, QuantAlgo.W4A16_MXFP4, QuantAlgo.W4A16_AWQ
MXFP4_FP8 = QuantAlgo.W4A8_MXFP4_FP8
# Few and wide tiles: the interpreter takes milliseconds for each.
FP8_TILES = MappingProxyType(
    {
        "no_sort": {"up_neurons": 64, "up_block": 128, "down_columns": 128, "down_block": 128},
        "swap_ab": {"up": {"rows": 32, "columns": 128}, "down": {"rows": 32, "columns": 128}},
        "grouped": {"up": {"passes": 2}, "down": {"columns": 128}},
    }
)
WORD_TILES = MappingProxyType(
    {
        "no_sort": {"up_rows": 128, "up_stages": 1, "down_columns": 64, "down_stages": 1},
        "swap_ab": {"up": {"rows": 32, "weight_rows": 128}, "down": {"rows": 32, "weight_rows": 128}},
    }
)
SIZES = MappingProxyType(
    {
        BLOCKS: {"hidden_size": 144, "intermediate_size": 256},
        QuantAlgo.FP8: {"hidden_size": 48, "intermediate_size": 64},
        QuantAlgo.FP8_PER_CHANNEL_PER_TOKEN: {"hidden_size": 48, "intermediate_size": 80},
    }
)
WORD_SIZES = MappingProxyType({"hidden_size": 64, "intermediate_size": 64})
GROUPS = MappingProxyType({AWQ: {"quant_group_size": 32}, QuantAlgo.W4A16_GPTQ: {"quant_group_size": 32}})
PATHS = [(quant, path) for quant in BY_QUANT for path in (FP8_TILES if quant in FP8 else WORD_TILES)]
MAPPED = [(quant, path) for quant, path in PATHS if path != "no_sort"]
ROUNDED = [(quant, path) for quant, path in MAPPED if quant in (*FP8, MXFP4_FP8)]
FEW = (1, 5)
"""Tokens that the interpreter has time for without a map: every pair has programs of its own."""
REAL = MappingProxyType({"hidden_size": 512, "intermediate_size": 384, "num_experts": 16, "top_k": 4})
TOKENS = (1, 7, 64, 300, 2000)
needs_interpreter = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles here")
needs_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
)
nan_is_loud = pytest.mark.filterwarnings("ignore:All-NaN slice encountered")  # the interpreter's, for rows of nobody


@dataclass(frozen=True)
class Trial(BackendTrial):
    """A trial on one path."""

    path: str = ""

    def bind(self, *args, **options):
        backend = super().bind(*args, **options)
        if self.path:
            tiles = FP8_TILES if self.problem.quant in FP8 else WORD_TILES
            backend.use({"path": self.path, "config": tiles[self.path]})
        return backend


def tiny(quant, path, **fields):
    sizes = {**SIZES.get(quant, WORD_SIZES), **GROUPS.get(quant, {}), "num_experts": 3, "top_k": 2}
    problem = small_problem(**{"quant": quant, "dtype_act": DType.FLOAT16, **sizes, **fields})
    return Trial(BY_QUANT[quant], problem, path=path)


@needs_interpreter
@nan_is_loud
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(("quant", "path"), MAPPED)
def test_conforms_interpreted(quant, path, check):
    check(tiny(quant, path, **ACTIVATIONS["swiglu_bias"]))


@needs_interpreter
@pytest.mark.parametrize("quant", BY_QUANT)
def test_few_tokens_need_no_map(quant):
    trial = tiny(quant, "no_sort", **ACTIVATIONS["swiglu_bias"])
    backend = trial.bind()
    for num_tokens in FEW:
        batch = trial.batch(num_tokens)
        assert_close(trial.run(backend, batch), trial.expected(batch), trial.tolerance)


@needs_interpreter
@pytest.mark.parametrize("check", [assert_foreign_ids_add_zero, assert_leaves_inputs_alone])
@pytest.mark.parametrize("quant", [BLOCKS, MXFP4, MXFP4_FP8])
def test_conforms_without_a_map(quant, check):
    check(tiny(quant, "no_sort"))


@needs_interpreter
@pytest.mark.parametrize("activation", ["swiglu_clamp", "relu2_with_bias", "geglu"])
@pytest.mark.parametrize(
    ("quant", "path"), [(BLOCKS, "swap_ab"), (BLOCKS, "grouped"), (MXFP4, "swap_ab"), (MXFP4_FP8, "swap_ab")]
)
def test_activations(quant, path, activation):
    trial = tiny(quant, path, **ACTIVATIONS[activation])
    backend, batch = trial.bind(), trial.batch(5)
    assert_close(trial.run(backend, batch), trial.expected(batch), trial.tolerance)


@needs_interpreter
@pytest.mark.parametrize(
    ("quant", "path", "sizes"),
    [
        (BLOCKS, "swap_ab", {"hidden_size": 208, "intermediate_size": 192}),
        (BLOCKS, "grouped", {"hidden_size": 208, "intermediate_size": 192}),
        (MXFP4, "swap_ab", {"hidden_size": 192, "intermediate_size": 96}),
        (MXFP4_FP8, "swap_ab", {"hidden_size": 208, "intermediate_size": 80}),
        (QuantAlgo.NVFP4, "swap_ab", {"hidden_size": 48, "intermediate_size": 176}),
        (QuantAlgo.W8A16, "swap_ab", {"hidden_size": 40, "intermediate_size": 136}),
    ],
)
def test_sizes_that_no_block_divides(quant, path, sizes):
    trial = tiny(quant, path, num_experts=5, top_k=3, **sizes)
    backend, batch = trial.bind(), trial.batch(9)
    assert_close(trial.run(backend, batch), trial.expected(batch), trial.tolerance)


@needs_interpreter
@pytest.mark.parametrize(
    ("quant", "path"), [(BLOCKS, "swap_ab"), (BLOCKS, "grouped"), (MXFP4, "swap_ab"), (MXFP4_FP8, "swap_ab")]
)
def test_rows_are_left_unfinalized(quant, path):
    trial = tiny(quant, path)
    backend, batch = trial.bind(), trial.batch(5)
    batch.token_selected_slots[1, 0] = -1
    left = backend.run_unfinalized(batch)
    row_NK = left.expanded_idx_to_permuted_idx.view(5, 2)
    assert row_NK[1, 0] == -1
    scales_NK = torch.where(row_NK >= 0, batch.token_final_scales, 0)
    rows_NKH = torch.where((row_NK >= 0).unsqueeze(-1), left.gemm2_output[row_NK.clamp(min=0)].float(), 0)
    assert_close((rows_NKH * scales_NK.unsqueeze(-1)).sum(dim=1), trial.expected(batch), trial.tolerance)


@needs_interpreter
@pytest.mark.parametrize(("quant", "path"), ROUNDED)
def test_rows_travel_quantized_where_ranks_exchange_them(quant, path):
    trial = tiny(quant, path)
    apart, together = trial.bind(MoEDeployment(ep_size=2, dp_size=2)), trial.bind(MoEDeployment(ep_size=2))
    batch = trial.batch(6)
    x, x_sf = apart.quantize_input(batch.x)
    assert (x.dtype, x_sf.shape) == (torch.float8_e4m3fn, (6, -(-144 // 128) if quant is BLOCKS else 1))
    form = RowBytes((x, x_sf))
    order = torch.tensor([5, 3, 0])  # as another rank may receive them
    ids, scales = batch.token_selected_slots[order], batch.token_final_scales[order]
    received, received_sf = form.unpack(form.pack((x, x_sf))[order])
    moved = MoERunContext(received, ids, scales, received_sf)
    assert_bitwise_equal(apart.run_moe(moved), together.run_moe(MoERunContext(batch.x[order], ids, scales)))
    assert [tensor.shape[0] for tensor in apart.quantize_input(batch.x[:0])] == [0, 0]


def test_rows_stay_as_they_are_where_nothing_is_gained():
    for quant, deployment in ((BLOCKS, MoEDeployment()), (MXFP4, MoEDeployment(ep_size=2, dp_size=2))):
        trial = tiny(quant, "swap_ab")
        x, x_sf = trial.bind(deployment).quantize_input(trial.batch(2).x)
        assert (x.dtype, x_sf) == (torch.float16, None)


def test_scales_are_refused_where_rows_are_not_quantized():
    trial = tiny(MXFP4, "swap_ab")
    batch = trial.batch(2)
    given = replace(batch, x_sf=batch.token_final_scales)
    with pytest.raises(ValueError, match=r"found rows of torch\.float16 with scales"):
        trial.bind().run_moe(given)


@pytest.mark.parametrize("quant", BY_QUANT)
def test_weights_are_loaded_again_where_they_were(quant):
    trial = tiny(quant, "swap_ab", **ACTIVATIONS["swiglu_bias"])
    backend, others = trial.bind(), replace(trial, seed=1).weights
    before, given = (
        [t.data_ptr() for t in backend.prepared.tensors()],
        {t.data_ptr() for t in trial.weights.tensors().values()},
    )
    assert not given & set(before)
    backend.prepare(others)
    assert [tensor.data_ptr() for tensor in backend.prepared.tensors()] == before
    fresh = trial.bind(weights=others)
    for actual, expected in zip(backend.prepared.tensors(), fresh.prepared.tensors(), strict=True):
        assert_bitwise_equal(actual, expected)


def test_gradients_are_refused():
    trial = tiny(MXFP4, "swap_ab")
    batch = trial.batch(3)
    batch.x.requires_grad_()
    with pytest.raises(RuntimeError, match=r"has no gradients; try: torch\.no_grad"):
        trial.bind().run_moe(batch)


def test_a_format_that_no_kernel_reads_is_refused():
    trial = tiny(AWQ, "", quant_group_size=16)
    with pytest.raises(BindError, match="groups of 16; needed weights that these kernels read"):
        trial.bind()


def test_the_kernels_follow_the_number_of_tokens():
    for quant in BY_QUANT:
        backend = BackendTrial(BY_QUANT[quant], small_problem(quant=quant, **REAL)).bind()
        assert [backend.choice(n).path for n in (1, 64)] == ["no_sort", "swap_ab"]
        assert backend.choice(100_000).path == ("grouped" if quant in FP8 else "swap_ab")


@pytest.mark.parametrize("quant", [BLOCKS, MXFP4, MXFP4_FP8])
def test_what_the_tuner_tries_can_be_used(quant):
    backend = tiny(quant, "").bind()
    for num_tokens in (4, 64, 2000):
        configs = backend.configs(num_tokens)
        assert 1 < len(configs) <= 24
        for config in configs:
            backend.use(config)
            assert (backend.choice(num_tokens).path, backend.choice(num_tokens).config) == tuple(config.values())


# On a GPU.


@pytest.mark.gpu
@needs_hopper
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("quant", BY_QUANT)
def test_conforms_on_hopper(quant, check):
    sizes = {"hidden_size": 256, "intermediate_size": 512}
    check(BackendTrial(BY_QUANT[quant], small_problem(quant=quant, **sizes), torch.device("cuda", 0)))


@pytest.mark.gpu
@needs_hopper
@pytest.mark.parametrize(
    ("activation", "dtype"),
    [("swiglu", DType.BFLOAT16), ("swiglu_bias", DType.BFLOAT16), ("relu2_with_bias", DType.FLOAT16)],
)
@pytest.mark.parametrize("quant", BY_QUANT)
def test_every_number_of_tokens_on_hopper(quant, activation, dtype):
    problem = small_problem(quant=quant, **{**REAL, **ACTIVATIONS[activation], "dtype_act": dtype})
    trial = BackendTrial(BY_QUANT[quant], problem, torch.device("cuda", 0))
    backend = trial.bind()
    for num_tokens in TOKENS:
        batch = trial.batch(num_tokens)
        for _ in range(2):  # compiled, and repeated from its recording
            assert_close(trial.run(backend, batch), trial.expected(batch), trial.tolerance)


@pytest.mark.gpu
@needs_hopper
@pytest.mark.parametrize("sizes", [(2880, 2880), (1024, 704), (2688, 1856), (512, 192)], ids=str)
@pytest.mark.parametrize("quant", BY_QUANT)
def test_odd_sizes_on_hopper(quant, sizes):
    hidden, inter = sizes
    fields = {**REAL, "hidden_size": hidden, "intermediate_size": inter, **GROUPS.get(quant, {})}
    trial = BackendTrial(BY_QUANT[quant], small_problem(quant=quant, **fields), torch.device("cuda", 0))
    backend = trial.bind()
    for num_tokens in (1, 64, 600):
        batch = trial.batch(num_tokens)
        assert_close(trial.run(backend, batch), trial.expected(batch), trial.tolerance)


@pytest.mark.gpu
@needs_hopper
@pytest.mark.parametrize("num_tokens", TOKENS)
@pytest.mark.parametrize("quant", BY_QUANT)
def test_is_captured_in_a_cuda_graph(quant, num_tokens):
    trial = BackendTrial(BY_QUANT[quant], small_problem(quant=quant, **REAL), torch.device("cuda", 0))
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
    others = replace(trial, seed=1).weights
    backend.prepare(others)
    graph.replay()
    assert_close(captured, trial.expected(batch, others), trial.tolerance)


@pytest.mark.gpu
@needs_hopper
@pytest.mark.parametrize("num_tokens", [4, 64, 2000])
@pytest.mark.parametrize("quant", BY_QUANT)
def test_every_tile_that_the_tuner_tries_is_right(quant, num_tokens):
    trial = BackendTrial(BY_QUANT[quant], small_problem(quant=quant, **REAL), torch.device("cuda", 0))
    backend = trial.bind()
    batch = trial.batch(num_tokens)
    expected = trial.expected(batch)
    for config in backend.configs(num_tokens):
        backend.use(config)
        try:
            assert_close(trial.run(backend, batch), expected, trial.tolerance)
        except Exception as error:
            raise AssertionError(f"{config} at {num_tokens} tokens") from error


@pytest.mark.gpu
@needs_hopper
@pytest.mark.parametrize("quant", BY_QUANT)
def test_a_share_of_the_experts_skips_the_others(quant):
    trial = BackendTrial(BY_QUANT[quant], small_problem(quant=quant, **REAL), torch.device("cuda", 0))
    for split in (MoEDeployment(ep_size=3), MoEDeployment(ep_size=3, dp_size=3)):
        for num_tokens in TOKENS:
            batch = trial.batch(num_tokens)
            ranks = [trial.bind(split, ParallelGroups(rank=rank, ep_rank=rank)) for rank in range(3)]
            parts = [trial.run(backend, batch).float() for backend in ranks]
            assert_close(torch.stack(parts).sum(dim=0), trial.expected(batch), trial.tolerance)
