"""Peers: bound to the same weights, and left out with a reason."""

import pytest
import torch

from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.vocabulary import ActivationType, QuantAlgo
from moe_core.measure.experts import dequantized_experts, random_experts
from moe_core.measure.inputs import TokenSource
from moe_core.measure.judge import ExpertsJudge
from moe_core.measure.peers import GROUPED_MM, PEER_TOLERANCE, PEERS, peer_module
from moe_core.measure.shapes import parse_shape
from moe_core.testing.problems import ACTIVATIONS, small_problem

PLAIN = [peer for peer in PEERS if peer.quant is QuantAlgo.NONE]
GROUPED, BATCHED = PLAIN
FP8 = [peer for peer in PEERS if peer.quant is QuantAlgo.FP8_BLOCK_SCALES]
CPU = torch.device("cpu")


@pytest.mark.parametrize("peer", PLAIN, ids=lambda peer: peer.name)
@pytest.mark.parametrize("kind", ["swiglu", "swiglu_bias", "geglu_tanh", "relu2_with_bias"])
def test_peers_compute_the_problem(peer, kind):
    pytest.importorskip("transformers")
    problem = small_problem(**ACTIVATIONS[kind])
    weights, tokens = random_experts(problem, CPU, 0), TokenSource(problem, CPU, 0).draw(9)
    with torch.inference_mode():
        answer = peer.bind(peer_module(problem, weights))(tokens)
    assert ExpertsJudge.of(problem, weights, tokens).error(answer) <= PEER_TOLERANCE


class _Kernels:
    """In place of the kernels that transformers fetches: the same products, of the weights' values."""

    @staticmethod
    def grouped_matmul(x, weight, scale, offsets, tokens_per_expert, block_size):
        experts = torch.arange(len(weight)).repeat_interleave(tokens_per_expert.long())
        return _Kernels.batched_matmul(x, weight, scale, block_size, experts)

    @staticmethod
    def batched_matmul(x, weight, scale, block_size, expert_ids):
        rows, columns = block_size
        spread = scale.repeat_interleave(rows, 1).repeat_interleave(columns, 2)[:, : weight.shape[1], : weight.shape[2]]
        return torch.einsum("rk,rnk->rn", x.float(), (weight.float() * spread)[expert_ids]).to(x.dtype)


@pytest.mark.parametrize("peer", FP8, ids=lambda peer: peer.name)
@pytest.mark.parametrize("changes", [{}, {"activation": ActivationType.RELU2, "intermediate_size": 96}])
def test_fp8_peers_read_the_checkpoints_codes_and_scales(peer, changes, monkeypatch):
    theirs = pytest.importorskip("transformers.integrations.finegrained_fp8")
    monkeypatch.setattr(theirs, "load_finegrained_fp8_kernel", _Kernels)
    sizes = {"hidden_size": 192, "intermediate_size": 128, "quant": QuantAlgo.FP8_BLOCK_SCALES}
    problem = small_problem(**sizes | changes)
    weights, tokens = random_experts(problem, CPU, 0), TokenSource(problem, CPU, 0).draw(9)
    with torch.inference_mode():
        answer = peer.bind(peer_module(problem, weights))(tokens)
    assert ExpertsJudge.of(problem, weights, tokens).error(answer) <= PEER_TOLERANCE


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"bias": True}, "found biases"),
        ({"intermediate_size": 192}, "found intermediate_size 192, needed a multiple of 128"),
        ({"quant": QuantAlgo.FP8}, "needed e4m3 with float scales per 128 x 128"),
    ],
)
def test_what_fp8_peers_cannot_hold_is_told(changes, complaint):
    problem = small_problem(**{"quant": QuantAlgo.FP8_BLOCK_SCALES} | changes)
    with pytest.raises(ValueError, match=complaint):
        peer_module(problem, random_experts(problem, CPU, 0))


def test_values_of_quantized_experts_are_an_orientation():
    pytest.importorskip("transformers")
    problem = small_problem(quant=QuantAlgo.W4A16_MXFP4, **ACTIVATIONS["swiglu_bias"])
    weights, tokens = random_experts(problem, CPU, 0), TokenSource(problem, CPU, 0).draw(9)
    with torch.inference_mode():
        answer = GROUPED_MM.bind(peer_module(problem, dequantized_experts(weights, torch.bfloat16)))(tokens)
    assert ExpertsJudge.of(problem, weights, tokens).error(answer) <= PEER_TOLERANCE


def test_only_what_rounds_activations_to_eight_bits_may_be_far_off():
    assert [peer.tolerance(torch.bfloat16) for peer in (*PLAIN, *FP8)] == [1e-2, 1e-2, 6e-2, 6e-2]
    assert GROUPED_MM.tolerance(torch.float16) < 2e-3
    assert FP8[0].tolerance(torch.float16) == 6e-2


def test_absent_and_old_packages_are_told():
    nowhere = MoEEnvironment()
    assert GROUPED.why_not(nowhere) == "transformers is not installed; try: pip install transformers"
    assert GROUPED.why_not(nowhere.with_packages(transformers="5.6.2")) == "found transformers 5.6.2, needed 5.7"
    assert GROUPED.why_not(nowhere.with_packages(transformers="5.10.0")) is None
    assert FP8[0].why_not(nowhere.with_packages(transformers="5.17.0")).startswith("kernels is not installed")


def test_gathered_matrices_must_fit():
    problem = parse_shape("qwen3-30b-a3b").problem
    needed = 64 * 8 * 3 * 2048 * 768 * 2
    assert BATCHED.too_large(problem, 64, 2 * needed) is None
    assert BATCHED.too_large(problem, 64, 2 * needed - 2) == (
        "it gathers 3 matrices for each of 512 pairs of token and expert: 4.5 GiB, and half of what is free is 4.5 GiB"
    )
    assert BATCHED.too_large(problem.evolve(activation=ActivationType.RELU2), 64, 2 * needed - 2) is None
    assert GROUPED.too_large(problem, 16384, 0) is None
