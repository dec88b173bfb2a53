"""The sparse mixer's published values."""

import pytest
import torch

from moe_core.routing.sparse_mixer import sparse_mixer
from moe_core.testing.numerics import assert_close

INF = torch.inf


@pytest.mark.parametrize(
    ("logits", "ids", "weights"),
    [
        ([1.0, 1.0, -INF, -INF], [0, 1], [0.5, 1.0]),
        ([2.0, 0.0, -INF, -INF], [0, 1], [1.0, 1.0]),
        ([1.0, 1.0, 1.0, -INF], [0, 1], [1 / 3, 1 / 2]),
        ([1.0, 0.65, -INF, -INF], [0, 1], [0.586618, 1.0]),  # within 2 * eps of the best
    ],
)
def test_weights_are_shares_among_near_rivals(logits, ids, weights):
    chosen, share = sparse_mixer(torch.tensor([logits]), top_k=2, eps=0.2)
    assert chosen.tolist() == [ids]
    assert_close(share, torch.tensor([weights]), 1e-6)


def test_logits_are_not_written_to():
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    sparse_mixer(logits, top_k=2, eps=0.01)
    assert logits.tolist() == [[1.0, 2.0, 3.0]]
