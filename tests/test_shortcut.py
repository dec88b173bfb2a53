"""On one rank, routing and experts may be called as one: with the same answer, and only where nothing else is asked."""

import pytest
import torch

from moe_core.contract.candidate import MoEStaticCapability
from moe_core.contract.catalog import Catalog, CatalogEntry
from moe_core.contract.deployment import MoEDeployment
from moe_core.environment import preset
from moe_core.execution import MoERunContext
from moe_core.layer import ConfigurableMoE
from moe_core.registry import load_catalog
from moe_core.resolve import resolve_moe_impl
from moe_core.routing import RoutingConfig, select_experts
from moe_core.testing.forward_overhead import IDLE, PROBLEM
from moe_core.testing.numerics import assert_bitwise_equal
from moe_core.testing.weights import random_weights
from moe_plugins.vanilla.backend import ReferenceLoop

joined_calls = []


class JoiningExperts(ReferenceLoop):
    """The twin, that can be joined with every router but one."""

    def joined(self, route):
        if getattr(route, "stays_apart", False):
            return None

        def call(x, logits, bias):
            joined_calls.append(x.shape[0])
            return self.run_moe(MoERunContext(x, *route(logits, bias, None, None)))

        return call


@pytest.fixture
def layer():
    joined_calls.clear()
    candidate = IDLE.evolve(
        identity="moe_core.joining.no_kernel.any",
        factory=f"{__name__}:JoiningExperts",
        capabilities=MoEStaticCapability(supports_graph_padding_trim=True),
    )
    catalog = Catalog([*load_catalog().entries, CatalogEntry(candidate)])
    deployment = MoEDeployment(environment=preset("cpu"), max_num_tokens=8)
    report = resolve_moe_impl(PROBLEM, deployment, candidates=catalog)
    assert report.winner().identity == candidate.identity
    with ConfigurableMoE.from_report(report, random_weights(PROBLEM), catalog=catalog) as made:
        yield made


def inputs(num_tokens=3):
    return torch.randn(num_tokens, 64, dtype=torch.bfloat16), torch.randn(num_tokens, 8)


def test_the_answer_is_the_schedulers(layer):
    x, logits = inputs()
    with torch.no_grad():
        joined = layer(x, logits)
        assert joined_calls == [3]
        apart = layer(x, logits, all_rank_num_tokens=(3,))
    assert joined_calls == [3]
    assert_bitwise_equal(joined, apart)


@pytest.mark.parametrize(
    "options",
    [
        {"all_rank_num_tokens": (3,)},
        {"is_padding": torch.tensor([False, False, True])},
        {"use_dp_padding": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_are_the_schedulers(layer, options):
    with torch.no_grad():
        layer(*inputs(), **options)
    assert not joined_calls


def test_gradients_are_the_schedulers(layer):
    x, logits = inputs()
    layer(x.requires_grad_(), logits)
    assert not joined_calls


def test_other_rows_are_the_schedulers(layer):
    x, logits = inputs(6)
    with torch.no_grad():
        assert layer(x[:0], logits[:0]).shape == (0, 64)
        layer(x[::2], logits[::2])
        layer(x.view(2, 3, 64), logits.view(2, 3, 8))
        assert not joined_calls
        with pytest.raises(ValueError, match="hidden_states are"):
            layer(x.half(), logits)
        with pytest.raises(ValueError, match="max_num_tokens"):
            layer(*inputs(9))
    assert not joined_calls


def test_a_router_that_is_replaced_is_asked(layer):
    x, logits = inputs()

    def reverse(logits_TE, bias_E, input_ids_T, table_VK):
        return select_experts(RoutingConfig.of(PROBLEM), -logits_TE, bias_E, input_ids_T, table_VK)

    with torch.no_grad():
        before = layer(x, logits)
        layer.router.replace(reverse)
        assert_bitwise_equal(layer(x, -logits), before)
    assert joined_calls == [3, 3]


def test_a_backend_may_refuse_a_router(layer):
    def apart(logits_TE, bias_E, input_ids_T, table_VK):
        return select_experts(RoutingConfig.of(PROBLEM), logits_TE, bias_E, input_ids_T, table_VK)

    apart.stays_apart = True
    x, logits = inputs()
    with torch.no_grad():
        expected = layer(x, logits)
        layer.router.replace(apart)
        assert_bitwise_equal(layer(x, logits), expected)
    assert joined_calls == [3]


def test_a_strategy_that_sleeps_is_not_passed_by(layer):
    x, logits = inputs()
    with torch.no_grad():
        layer(x, logits)
        [strategy] = layer.strategies
        strategy.sleep()
        with pytest.raises(RuntimeError):
            layer(x, logits)
        strategy.wake()
        layer(x, logits)
    assert joined_calls == [3, 3]
