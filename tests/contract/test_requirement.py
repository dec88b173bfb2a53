"""Predicates and requirements: three values, conditions, and what they say."""

import pytest
from pydantic import ValidationError

from moe_core.contract.declare import (
    AtLeast,
    AtMost,
    Condition,
    Equals,
    Includes,
    Installed,
    MultipleOf,
    NoneOf,
    OneOf,
    Reason,
    Requirement,
    SameAs,
    SubsetOf,
    is_,
    isnt,
    need,
    one_of,
    package,
)
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import MoEEnvironment, Package
from moe_core.contract.facts import DERIVED_FACTS, Facts, facts_of, is_fact_name
from moe_core.contract.problem import MoEProblem

PROBLEM = MoEProblem(
    hidden_size=2880,
    intermediate_size=768,
    num_experts=128,
    top_k=4,
    quant="W4A16_AWQ",
    activation="SwigluBias",
    activation_constants=({"name": "alpha", "value": 1.702}, {"name": "clamp", "value": 7.0}),
    bias=True,
)
HOPPER = MoEEnvironment(device="cuda", sm=90, packages=(Package(name="torch", version="2.11.0+cu130"),))
FACTS = facts_of(PROBLEM, MoEDeployment(tp_size=4, ep_size=2, environment=HOPPER))

# fact, predicate, whether it holds, what is needed
PREDICATES = [
    ("sm", Equals(value=90), True, "90"),
    ("sm", Equals(value=100), False, "100"),
    ("sm", OneOf(values=(100, 103)), False, "100 or 103"),
    ("sm", NoneOf(values=(120, 121)), True, "not 120 or 121"),
    ("top_k", AtMost(value=16), True, "at most 16"),
    ("top_k", AtLeast(value=5), False, "at least 5"),
    ("hidden_size", MultipleOf(value=512), False, "a multiple of 512"),
    ("intermediate_size", MultipleOf(value=32, times="tp_size"), True, "a multiple of 32 x tp_size"),
    ("intermediate_size_per_tp", MultipleOf(value=128), False, "a multiple of 128"),
    ("intermediate_groups", MultipleOf(times="tp_size"), False, "a multiple of tp_size"),
    ("ep_size", SameAs(fact="parallel_size"), False, "equal to parallel_size"),
    ("activation_constant_names", SubsetOf(values=("alpha", "beta", "clamp")), True, "only alpha, beta and clamp"),
    ("activation_constant_names", SubsetOf(values=()), False, "none"),
    ("activation_constant_names", Includes(values=("beta",)), False, "beta"),
    ("package:torch", Installed(at_least="2.9"), True, ">= 2.9"),
    ("package:torch", Installed(at_least="2.11.1"), False, ">= 2.11.1"),
    ("package:torch", Installed(below="2.11"), False, "< 2.11"),
    ("package:flashinfer", Installed(), False, "installed"),
    ("flag:SOME_SWITCH", Equals(value="1"), False, "1"),
    ("feature:flashinfer.bf16_moe", Equals(value=True), False, "yes"),
    ("feature:torch.grouped_mm", Equals(value=True), None, "yes"),
    ("plugin:hello.ready", Equals(value=True), None, "yes"),
    ("max_num_tokens", AtMost(value=4096), None, "at most 4096"),
    ("memory_needed", AtMost(times="device_memory"), None, "at most device_memory"),
]


@pytest.mark.parametrize(("fact", "test", "holds", "needed"), PREDICATES)
def test_predicate(fact, test, holds, needed):
    condition = Condition(fact=fact, test=test)
    assert condition.holds(FACTS) is holds
    assert test.needed() == needed
    assert Condition.from_json(condition.to_json()) == condition


def test_a_size_that_does_not_divide_is_not_a_multiple():
    facts = facts_of(PROBLEM, MoEDeployment(tp_size=5))
    assert facts["intermediate_size_per_tp"] == 153.6
    assert Condition(fact="intermediate_size_per_tp", test=MultipleOf(value=1)).holds(facts) is False


def test_packages_are_absent_only_when_the_list_is_known():
    unknown = facts_of(PROBLEM, MoEDeployment(environment=MoEEnvironment(packages=None)))
    assert package("torch").met(unknown) is None
    assert package("torch").met(facts_of(PROBLEM, MoEDeployment())) is False


ON_107 = (is_("sm", 107),)
CONDITIONAL = need(Reason.FINALIZE_FUSION_REQUIRED, "fused_finalize_enabled", Equals(value=True), when=ON_107)


@pytest.mark.parametrize(
    ("sm", "fused", "met"),
    [(107, True, True), (107, False, False), (100, False, True), (None, False, None), (None, True, True)],
)
def test_a_condition_decides_whether_a_requirement_applies(sm, fused, met):
    environment = MoEEnvironment(device="cuda", sm=sm)
    facts = facts_of(PROBLEM, MoEDeployment(fused_finalize_enabled=fused, environment=environment))
    assert CONDITIONAL.met(facts) is met
    assert CONDITIONAL.needed == "yes (when sm: 107)"


@pytest.mark.parametrize(
    ("activation", "bias", "met"),
    [("Swiglu", True, False), ("SwigluBias", True, False), ("SwigluBias", False, True), ("SwigluBias", None, None)],
)
def test_an_exemption_needs_all_of_its_conditions(activation, bias, met):
    package_of_constants = (is_("activation", "SwigluBias"), is_("bias", False))
    gate = need(Reason.ACTIVATION_UNSUPPORTED, "swiglu_gptoss_style", Equals(value=False), unless=package_of_constants)
    facts = facts_of(MoEProblem(activation=activation, bias=bias), MoEDeployment())
    assert gate.met(facts) is met


def test_misspelt_facts_are_refused_when_declared():
    with pytest.raises(ValidationError, match="'hiden_size' is no fact"):
        need(Reason.SHAPE_UNALIGNED, "hiden_size", MultipleOf(value=8))
    with pytest.raises(ValidationError, match="times names 'tp'"):
        MultipleOf(times="tp")
    with pytest.raises(ValidationError, match="same_as names 'world'"):
        SameAs(fact="world")
    with pytest.raises(KeyError, match="is no fact"):
        Facts({})["hiden_size"]


def test_every_named_fact_can_be_looked_up():
    for name in DERIVED_FACTS:
        assert is_fact_name(name)
        FACTS[name]


def test_fixable_by_follows_the_reason_unless_said_otherwise():
    assert need(Reason.SM_UNSUPPORTED, "sm", Equals(value=90)).fixable_by == "hardware"
    assert need(Reason.SM_UNSUPPORTED, "sm", Equals(value=90), fixable="install").fixable_by == "install"


def test_requirements_survive_json():
    gate = need(
        Reason.SHAPE_UNALIGNED, "hidden_size", MultipleOf(value=4, times="tp_size"), "pad",
        when=(one_of("sm", 100, 103),), unless=(isnt("quant", "NONE"),),
    )  # fmt: skip
    assert Requirement.from_json(gate.to_json()) == gate
