"""Forgetting makes less of a question, never another one."""

import pytest

from moe_core.contract.environment import Feature, MoEEnvironment, Package, PluginFact
from moe_core.contract.vocabulary import ActivationType, Device, QuantAlgo
from moe_core.testing.boundary import PLAIN
from moe_core.testing.question import UNKNOWABLE, forget, knows_no_more

INFERRED = ("problem.swiglu_gptoss_style", "deployment.num_nodes", "deployment.ranks_per_node")
"""From activation and bias, and from each other."""


def test_fields_with_a_default_meaning_are_not_unknowable():
    assert {"problem.quant", "deployment.max_num_tokens", "environment.sm", "environment.features"} <= set(UNKNOWABLE)
    for field in ("problem.quant_group_size", "deployment.num_slots", "environment.name", "deployment.ep_size"):
        assert field not in UNKNOWABLE


@pytest.mark.parametrize("field", UNKNOWABLE)
def test_forgetting_one_field_leaves_the_rest(field):
    less = forget(PLAIN, field)
    assert knows_no_more(less, PLAIN)
    part, _, name = field.partition(".")
    if field not in INFERRED:
        assert getattr(getattr(less, part), name) in (None, ())


def test_forgetting_everything():
    less = forget(PLAIN, *UNKNOWABLE)
    assert knows_no_more(less, PLAIN)
    assert less.facts["hidden_size"] is less.facts["sm"] is less.facts["package:torch"] is None


def test_what_follows_from_the_rest_stays_known():
    on_cpu = PLAIN.with_environment(device=Device.CPU, sm=0)
    assert forget(on_cpu, "environment.sm").facts["sm"] == 0
    with_style = PLAIN.with_problem(activation=ActivationType.SWIGLU_BIAS, swiglu_gptoss_style=None)
    assert forget(with_style, "problem.swiglu_gptoss_style").facts["swiglu_gptoss_style"] is True


def test_features_of_absent_packages_are_not_forgotten():
    features = (Feature(name="torch.here", present=True), Feature(name="gone.there", present=True))
    machine = MoEEnvironment(packages=(Package(name="torch", version="2.13"),), features=features)
    question = PLAIN.with_deployment(environment=machine)
    assert [f.name for f in forget(question, "environment.features").environment.features] == ["gone.there"]
    assert forget(question, "environment.features", "environment.packages").environment.features == ()


@pytest.mark.parametrize(
    "other",
    [
        PLAIN.with_problem(quant=QuantAlgo.FP8),
        PLAIN.with_problem(num_attention_heads=8),
        PLAIN.with_deployment(ep_size=2, parallel_size=None, attention_tp_size=None, num_nodes=None),
        PLAIN.with_environment(sm=100),
        PLAIN.with_environment(facts=(PluginFact(name="a.b", value=1),)),
    ],
)
def test_knowing_something_else_is_not_knowing_less(other):
    assert not knows_no_more(other, PLAIN)
    assert knows_no_more(PLAIN, PLAIN)


def test_a_question_shows_only_what_is_not_default():
    assert repr(PLAIN.with_deployment(environment=MoEEnvironment(sm=90))).endswith(
        'deployment={"environment":{"sm":90},"attention_tp_size":1,"parallel_size":1,"num_nodes":1,"ranks_per_node":1,'
        '"max_num_tokens":64,"moe_max_num_tokens":64,"max_dispatch_tokens":64}'
    )
