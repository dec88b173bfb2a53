"""Weights are loaded into a layer a second time, as reinforcement learning does after each step."""

from dataclasses import replace

import pytest
import torch

from moe_core.contract.candidate import MoEStaticCapability
from moe_core.contract.catalog import Catalog, CatalogEntry
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.request import MoERequest
from moe_core.environment import preset
from moe_core.execution import BindError
from moe_core.layer import ConfigurableMoE
from moe_core.registry import load_catalog
from moe_core.resolve import resolve_moe_impl
from moe_core.testing.numerics import assert_bitwise_equal
from moe_core.testing.problems import ACTIVATIONS, small_problem
from moe_core.testing.weights import random_weights

PROBLEM = small_problem(**ACTIVATIONS["swiglu_bias"])
FIRST, SECOND = random_weights(PROBLEM), random_weights(PROBLEM, seed=1)
BACKENDS = ("VANILLA", "TORCH_GROUPED")


def layer_for(weights=FIRST, backend="auto", catalog=None):
    catalog = catalog or load_catalog()
    deployment = MoEDeployment(environment=preset("cpu"))
    report = resolve_moe_impl(PROBLEM, deployment, candidates=catalog, request=MoERequest(backend=backend))
    return ConfigurableMoE.from_report(report, weights, catalog=catalog)


def answer(layer):
    generator = torch.Generator().manual_seed(0)
    return layer(torch.randn(9, 64, generator=generator).bfloat16(), torch.randn(9, 8, generator=generator))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_layer_becomes_the_layer_of_the_new_weights(backend):
    layer, before = layer_for(backend=backend), FIRST.map(torch.clone)
    first = answer(layer)
    layer.load_weights(SECOND)
    assert not answer(layer).equal(first)
    assert_bitwise_equal(answer(layer), answer(layer_for(SECOND, backend)))
    layer.load_weights(FIRST)
    assert_bitwise_equal(answer(layer), first)
    for name, tensor in FIRST.tensors().items():
        assert_bitwise_equal(tensor, before.tensors()[name])


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_the_mode_in_which_a_layer_was_made_is_not_the_one_in_which_it_is_loaded(mode):
    with mode():
        layer = layer_for()
    layer.load_weights(SECOND)
    assert_bitwise_equal(answer(layer), answer(layer_for(SECOND)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_misfits_are_refused_all_at_once_and_leave_the_layer_as_it_was(backend):
    layer = layer_for(backend=backend)
    first = answer(layer)
    wrong = replace(SECOND, w1_EIH=SECOND.w1_EIH[:, :16], w2_EHI=SECOND.w2_EHI.float(), b1_EI=None)
    with pytest.raises(BindError) as refusal:
        layer.load_weights(wrong)
    assert "w1_EIH: found [8, 16, 64], needed [8, 32, 64]" in str(refusal.value)
    assert "w2_EHI: found torch.float32, needed torch.bfloat16" in str(refusal.value)
    assert_bitwise_equal(answer(layer), first)


def test_what_takes_weights_once_refuses_others():
    entries = load_catalog().entries
    once = [
        CatalogEntry(e.candidate.evolve(capabilities=MoEStaticCapability(supports_expert_bias=True, reloadable=False)))
        for e in entries
        if e.candidate.identity == "moe_core.torch.grouped_mm.none"
    ]
    rest = [e for e in entries if e.candidate.identity != "moe_core.torch.grouped_mm.none"]
    layer = layer_for(catalog=Catalog([*rest, *once]))
    with pytest.raises(BindError, match=r"grouped_mm\.none:\n  it takes weights once; make a new layer"):
        layer.load_weights(SECOND)
