"""Peers: bound to the same weights, and left out with a reason."""

import pytest
import torch

from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.vocabulary import ActivationType
from moe_core.measure.inputs import TokenSource, random_experts
from moe_core.measure.judge import ExpertsJudge
from moe_core.measure.peers import PEER_TOLERANCE, PEERS
from moe_core.measure.shapes import parse_shape
from moe_core.testing.problems import ACTIVATIONS, small_problem

GROUPED, BATCHED = PEERS
CPU = torch.device("cpu")


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
@pytest.mark.parametrize("kind", ["swiglu", "swiglu_bias", "geglu_tanh", "relu2_with_bias"])
def test_peers_compute_the_problem(peer, kind):
    pytest.importorskip("transformers")
    problem = small_problem(**ACTIVATIONS[kind])
    weights, tokens = random_experts(problem, CPU, 0), TokenSource(problem, CPU, 0).draw(9)
    with torch.inference_mode():
        answer = peer.bind(problem, weights)(tokens)
    assert ExpertsJudge.of(problem, weights, tokens).error(answer) <= PEER_TOLERANCE


def test_absent_and_old_packages_are_told():
    nowhere = MoEEnvironment()
    assert GROUPED.why_not(nowhere) == "transformers is not installed; try: pip install transformers"
    assert GROUPED.why_not(nowhere.with_packages(transformers="5.6.2")) == "found transformers 5.6.2, needed 5.7"
    assert GROUPED.why_not(nowhere.with_packages(transformers="5.10.0")) is None


def test_gathered_matrices_must_fit():
    problem = parse_shape("qwen3-30b-a3b").problem
    needed = 64 * 8 * 3 * 2048 * 768 * 2
    assert BATCHED.too_large(problem, 64, 2 * needed) is None
    assert BATCHED.too_large(problem, 64, 2 * needed - 2) == (
        "it gathers 3 matrices for each of 512 pairs of token and expert: 4.5 GiB, and half of what is free is 4.5 GiB"
    )
    assert BATCHED.too_large(problem.evolve(activation=ActivationType.RELU2), 64, 2 * needed - 2) is None
    assert GROUPED.too_large(problem, 16384, 0) is None
