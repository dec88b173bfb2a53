"""Values next to a limit are on the side that they claim to be on."""

import pytest

from moe_core.contract.facts import ABSENT, UNSET
from moe_core.contract.predicate import (
    AtLeast,
    AtMost,
    Equals,
    Includes,
    Installed,
    MultipleOf,
    NoneOf,
    OneOf,
    SameAs,
    SubsetOf,
)
from moe_core.contract.vocabulary import QuantAlgo
from moe_core.testing.boundary import PLAIN
from moe_core.testing.edges import edges_of, members_of

FACTS = PLAIN.facts
CONSTANTS = "activation_constant_names"
CASES = [
    (Equals(value=True), "bias", (True,), {False}),
    (Equals(value=16), "top_k", (16,), {15, 17}),
    (Equals(value="1"), "flag:SWITCH", ("1",), {UNSET, "10"}),
    (Equals(value="checkpoint"), "weight_layout", ("checkpoint",), {"checkpoint_other"}),
    (OneOf(values=(90, 100)), "sm", (90, 100), {89, 91, 99, 101}),
    (OneOf(values=("NVFP4",)), "quant", ("NVFP4",), {q.value for q in QuantAlgo if q != "NVFP4"}),
    (NoneOf(values=(4,)), "top_k", (5, 3), {4}),
    (AtLeast(value=4), "top_k", (4, 5), {3}),
    (AtMost(value=2, times="top_k"), "num_experts", (4, 3), {5}),
    (MultipleOf(value=128), "hidden_size", (2048, 2176, 128), {2047, 2049, 2112}),
    (SameAs(fact="top_k"), "num_experts", (2,), {1, 3}),
    (
        SubsetOf(values=("alpha",)),
        "activation_constant_names",
        ((), ("alpha",)),
        {("alpha", "beta"), ("alpha", "clamp")},
    ),
    (Includes(values=("alpha", "beta")), "activation_constant_names", (("alpha", "beta"),), {("alpha",), ("beta",)}),
    (Installed(), "package:x", ("1.0",), {ABSENT}),
    (Installed(at_least="2.10", below="3"), "package:x", ("2.10", "2.9999"), {ABSENT, "2.9.9999", "3"}),
    (Installed(at_least="0.0"), "package:x", ("0.0",), {ABSENT}),
]


@pytest.mark.parametrize(("test", "fact", "inside", "outside"), CASES, ids=[f"{c[1]}: {c[0].needed()}" for c in CASES])
def test_values_on_both_sides(test, fact, inside, outside):
    edges = edges_of(test, fact, FACTS)
    assert edges.inside == inside
    assert set(edges.outside) == outside
    assert all(test.holds(value, FACTS) for value in edges.inside)
    assert not any(test.holds(value, FACTS) for value in edges.outside)


def test_an_unknown_limit_has_no_edges():
    unknown = PLAIN.with_problem(top_k=None).facts
    assert edges_of(AtMost(times="top_k"), "num_experts", unknown) == ((), ())
    assert edges_of(SameAs(fact="top_k"), "num_experts", unknown) == ((), ())


def test_members_of_a_vocabulary():
    assert members_of("quant") == tuple(QuantAlgo)
    assert members_of("hidden_size") == members_of("world_size") == ()
