"""Routers beside experts: the usual ones are computed, others are left to the model."""

import pytest
import torch

from moe_core.checkpoint import load_router
from moe_core.testing.numerics import assert_bitwise_equal

LAYER, GATE = 3, "model.layers.3.mlp.gate"


def router(written, problem=None, **tensors):
    given = written("Qwen")
    kept = {k: t for k, t in given.tensors.items() if not k.startswith(GATE)}
    beside = {f"model.layers.3.mlp.{path.replace('__', '.')}": t for path, t in tensors.items()}
    problem = given.problem.evolve(**(problem or {}))
    return load_router(given.rewritten(kept | beside).checkpoint, LAYER, problem)


def weight():
    return torch.randn(4, 64, generator=torch.Generator().manual_seed(0))


def test_logits_are_float32_products(written):
    found = router(written, gate__weight=weight().bfloat16())
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert_bitwise_equal(found.logits(x), x.float() @ weight().bfloat16().float().T)


def test_a_bias_is_added_to_the_logits(written):
    found = router(written, router__weight=weight(), router__bias=torch.full((4,), 2.0))
    assert found.logits(torch.zeros(1, 64)).tolist() == [[2.0] * 4]
    assert found.correction_bias_E is None


@pytest.mark.parametrize("path", ["gate__e_score_correction_bias", "experts__e_score_correction_bias", "gate__bias"])
def test_a_correction_bias_is_not_added_to_the_logits(written, path):
    shift = {path: torch.full((4,), 2.0).bfloat16()}
    found = router(written, {"routing_bias": True}, gate__weight=weight(), **shift)
    assert found.bias_E is None
    assert_bitwise_equal(found.correction_bias_E, torch.full((4,), 2.0))


@pytest.mark.parametrize(
    ("problem", "tensors"),
    [
        ({}, {}),
        ({}, {"gate__weight": weight().T}),
        ({}, {"gate__weight": weight(), "gate__tid2eid": torch.zeros(2)}),
        ({}, {"router__weight": weight(), "router__norm__weight": torch.zeros(2)}),
        ({"routing_bias": True}, {"gate__weight": weight()}),
    ],
    ids=["no key", "transposed", "hashed", "normalized", "without its correction bias"],
)
def test_routers_that_are_not_known(written, problem, tensors):
    assert router(written, problem, **tensors) is None
