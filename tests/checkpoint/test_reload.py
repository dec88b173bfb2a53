"""A checkpoint that is loaded a second time, as in reinforcement learning, gives the layer that it gave before."""

import pytest
import torch

from moe_core.checkpoint import load_layer
from moe_core.contract.deployment import MoEDeployment
from moe_core.environment import preset
from moe_core.layer import ConfigurableMoE
from moe_core.registry import load_catalog
from moe_core.resolve import resolve_moe_impl
from moe_core.testing.numerics import assert_bitwise_equal

LAYER = 3


@pytest.mark.parametrize(
    "name", ["Qwen", "transformers 5", "gpt-oss", "DeepSeek FP8", "ModelOpt FP8", "AWQ", "Nemotron-H NVFP4"]
)
def test_loading_again_gives_the_same_layer(written, name):
    given = written(name)
    report = resolve_moe_impl(
        given.problem, MoEDeployment(environment=preset("cpu"), max_num_tokens=8), candidates=load_catalog()
    )
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, given.problem.hidden_size, generator=generator).bfloat16()
    logits = torch.randn(5, given.problem.num_experts, generator=generator)
    with ConfigurableMoE.from_report(report, load_layer(given.checkpoint, LAYER, given.problem)) as layer:
        first = layer(x, logits)
        other = load_layer(given.checkpoint, LAYER, given.problem).map(lambda tensor: tensor.roll(1, dims=0))
        layer.load_weights(other)
        assert not layer(x, logits).equal(first)
        layer.load_weights(load_layer(given.checkpoint, LAYER, given.problem))
        assert_bitwise_equal(layer(x, logits), first)
