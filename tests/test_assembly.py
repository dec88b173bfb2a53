"""What a report names is made once and on the right place, and nothing is left behind when something fails."""

import sys
from types import SimpleNamespace

import pytest
import torch

from moe_core.assembly import destroy_all, make_strategies
from moe_core.communication import Communication
from moe_core.contract.catalog import Catalog
from moe_core.contract.declare import AtMost, Reason, need
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.request import MoERequest
from moe_core.contract.vocabulary import Device
from moe_core.execution import BindError, Binding
from moe_core.layer import ConfigurableMoE
from moe_core.resolve import resolve_moe_impl
from moe_core.testing.numerics import assert_bitwise_equal
from moe_core.testing.problems import small_problem
from moe_core.testing.weights import random_weights
from moe_plugins import comm_none, vanilla
from moe_plugins.comm_none.strategy import NoExchange
from moe_plugins.vanilla.backend import ReferenceLoop

(LOOP,) = vanilla.CANDIDATES
(NOTHING,) = comm_none.CANDIDATES
PROBLEM = small_problem()


@pytest.fixture
def made(monkeypatch):
    """Strategies and backends in the order in which factories of the module ``made_here`` gave them."""
    found = []

    class Counting(NoExchange):
        def __init__(self, binding):
            super().__init__(binding)
            self.times_released = 0
            found.append(self)

        def _release(self):
            self.times_released += 1

    class Sharing(ReferenceLoop):
        def __init__(self, binding):
            super().__init__(binding)
            self.prepared, self.prepares = None, 0
            found.append(self)

        def prepare(self, weights):
            self.prepares += 1
            if self.prepared is None:
                self.prepared = weights.map(torch.clone)
            else:
                self.prepared.overwrite(weights)
            super().prepare(self.prepared)

        def adopt(self, prepared):
            self.prepared = prepared
            super().prepare(prepared)

    class Backend(ReferenceLoop):
        def __init__(self, binding):
            super().__init__(binding)
            self.calls = 0
            found.append(self)

        def run_moe(self, context):
            self.calls += 1
            return super().run_moe(context)

    def failing(binding):
        raise RuntimeError("out of handles")

    factories = (Counting, Sharing, Backend, failing)
    monkeypatch.setitem(sys.modules, "made_here", SimpleNamespace(**{c.__name__: c for c in factories}))
    return found


def report_for(*candidates, problem=PROBLEM, **request):
    deployment = MoEDeployment(environment=MoEEnvironment(device=Device.CPU, sm=0))
    return resolve_moe_impl(problem, deployment, candidates=candidates, request=MoERequest(**request))


def binding(factory):
    candidate = NOTHING.evolve(identity=f"a.b.{factory.lower()}.any", factory=f"made_here:{factory}")
    return Binding(candidate, PROBLEM, MoEDeployment(), torch.device("cpu"), torch.bfloat16)


def test_a_strategy_that_cannot_be_made_leaves_none_behind(made):
    with pytest.raises(RuntimeError, match="out of handles"):
        make_strategies([binding("Counting"), binding("failing")])
    assert [strategy.times_released for strategy in made] == [1]


def test_one_that_fails_to_let_go_does_not_keep_the_others():
    class Stuck(Communication):
        _dispatch = _combine = None

        def _release(self):
            raise RuntimeError("stuck")

    stuck, other = Stuck(binding("Stuck")), NoExchange(binding("Other"))
    with pytest.raises(RuntimeError, match="stuck"):
        destroy_all([stuck, other])
    assert other.phase.name == "DESTROYED"


def test_a_layer_that_cannot_be_made_destroys_its_strategies_once(made):
    counted = NOTHING.evolve(factory="made_here:Counting")
    report = report_for(LOOP, counted)
    with pytest.raises(BindError, match="the backend has no run_unfinalized"):
        ConfigurableMoE.from_report(
            report, random_weights(PROBLEM), catalog=Catalog.of((LOOP, counted)), unfinalized_combine=print
        )
    assert [strategy.times_released for strategy in made] == [1]


def test_leaving_the_layer_destroys_once_even_when_a_forward_failed(made):
    counted = NOTHING.evolve(factory="made_here:Counting")
    with (
        pytest.raises(ValueError, match="needed"),
        ConfigurableMoE.from_report(
            report_for(LOOP, counted), random_weights(PROBLEM), catalog=Catalog.of((LOOP, counted))
        ) as layer,
    ):
        layer(torch.zeros(1, 3), torch.zeros(1, 8))
    layer.destroy()
    assert [strategy.times_released for strategy in made] == [1]


def test_a_models_own_sum_is_refused_where_weights_would_be_applied_twice(made):
    on_input = small_problem(routing="Llama4", top_k=1, apply_router_weight_on_input=True)
    weighing = NOTHING.evolve(finalize_before_combine=False)
    for problem, strategy, message in (
        (on_input, NOTHING, "would be applied twice"),
        (PROBLEM, weighing, "combines rows by router weight itself"),
    ):
        with pytest.raises(BindError, match=message):
            ConfigurableMoE.from_report(
                report_for(LOOP, strategy, problem=problem),
                random_weights(problem),
                catalog=Catalog.of((LOOP, strategy)),
                unfinalized_combine=print,
            )


def test_each_token_bucket_has_the_backend_that_was_decided_for_it(made):
    large = LOOP.evolve(factory="made_here:Backend")
    limit = need(Reason.TOKENS_OVER_CAPACITY, "max_num_tokens", AtMost(value=4))
    small = large.evolve(identity="a.b.small.any", priority=900, requirements=(*LOOP.requirements, limit))
    report = report_for(small, large, NOTHING, token_buckets=(2, 4, 64))
    assert [d.winner for d in report.decisions if d.kind == "backend"] == [small.identity] * 2 + [large.identity]
    weights, generator = random_weights(PROBLEM), torch.Generator().manual_seed(0)
    with ConfigurableMoE.from_report(report, weights, catalog=Catalog.of((small, large, NOTHING))) as layer:
        for_small, for_large = made
        assert layer.backend is for_large
        x, logits = torch.randn(9, 64, generator=generator).bfloat16(), torch.randn(9, 8, generator=generator)
        answers = [layer(x[:n], logits[:n]) for n in (1, 4, 5, 9)]
        assert (for_small.calls, for_large.calls) == (2, 2)
        for answer in answers[:-1]:
            assert_bitwise_equal(answer, answers[-1][: len(answer)])


def for_each_bucket(*factories, layouts=("halves", "halves", "halves")):
    """Backends for up to 2, up to 4 and more tokens, with their layouts."""
    return [
        LOOP.evolve(
            identity=f"a.b.upto_{most}.any",
            factory=f"made_here:{factory}",
            priority=1000 - most,
            prepared_layout=layout,
            requirements=(*LOOP.requirements, need(Reason.TOKENS_OVER_CAPACITY, "max_num_tokens", AtMost(value=most))),
        )
        for most, factory, layout in zip((2, 4, 64), factories, layouts, strict=True)
    ]


def layer_of(candidates, weights):
    report = report_for(*candidates, NOTHING, token_buckets=(2, 4, 64))
    assert [d.winner for d in report.decisions if d.kind == "backend"] == [c.identity for c in candidates]
    return ConfigurableMoE.from_report(report, weights, catalog=Catalog.of((*candidates, NOTHING)))


def answers_of(layer):
    generator = torch.Generator().manual_seed(0)
    x, logits = torch.randn(9, 64, generator=generator).bfloat16(), torch.randn(9, 8, generator=generator)
    return [layer(x[:n], logits[:n]) for n in (1, 4, 9)]


def test_backends_of_one_layout_run_from_one_copy(made):
    first, second = random_weights(PROBLEM), random_weights(PROBLEM, seed=1)
    with layer_of(for_each_bucket("Sharing", "Sharing", "Sharing"), first) as layer:
        assert [backend.prepares for backend in made] == [1, 0, 0]
        assert len({id(backend.prepared) for backend in made}) == 1
        before = answers_of(layer)
        addresses = [t.data_ptr() for t in made[-1].prepared.tensors().values()]
        layer.load_weights(second)
        assert [backend.prepares for backend in made] == [2, 0, 0]
        assert [t.data_ptr() for t in made[-1].prepared.tensors().values()] == addresses
        after = answers_of(layer)
    for candidates_alone, weights, answers in ((LOOP, first, before), (LOOP, second, after)):
        with layer_of_one(candidates_alone, weights) as twin:
            for answer, expected in zip(answers, answers_of(twin), strict=True):
                assert_bitwise_equal(answer, expected)


def layer_of_one(candidate, weights):
    catalog = Catalog.of((candidate, NOTHING))
    return ConfigurableMoE.from_report(report_for(candidate, NOTHING), weights, catalog=catalog)


def test_backends_of_other_layouts_or_of_none_prepare_their_own(made):
    candidates = for_each_bucket("Sharing", "Backend", "Sharing", layouts=("halves", None, "interleaved"))
    with layer_of(candidates, random_weights(PROBLEM)) as layer:
        sharing = [backend for backend in made if hasattr(backend, "prepares")]
        assert [backend.prepares for backend in sharing] == [1, 1]
        assert sharing[0].prepared is not sharing[1].prepared
        assert_bitwise_equal(*(a[:1] for a in answers_of(layer)[:2]))


@pytest.mark.parametrize("factories", [("Sharing", "Backend", "Sharing"), ("Backend", "Sharing", "Sharing")])
def test_one_that_claims_a_layout_and_cannot_share_it_is_refused(made, factories):
    message = "prepared_layout is 'halves', as another backend's of this layer, but Backend cannot share it; needed"
    with pytest.raises(BindError, match=message):
        layer_of(for_each_bucket(*factories), random_weights(PROBLEM))
    assert [backend.prepares for backend in made if hasattr(backend, "prepares")] == [0, 0]


def test_alone_in_its_layout_a_backend_need_not_share(made):
    candidates = for_each_bucket("Backend", "Sharing", "Sharing", layouts=("own", "halves", "halves"))
    with layer_of(candidates, random_weights(PROBLEM)) as layer:
        assert len(answers_of(layer)) == 3
