"""Plugins' facts: scalars under their own prefix; what breaks the rules is named and left out."""

import math

import pytest

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.catalog import Catalog
from moe_core.contract.declare import feature, flag, is_, need, package, quant_in
from moe_core.contract.predicate import Equals
from moe_core.contract.reasons import MoERejectReason
from moe_core.contract.vocabulary import CandidateKind, QuantAlgo
from moe_core.environment.plugin_facts import checked_facts, mentioned_facts


def values(*found):
    facts, errors = checked_facts(found)
    return {f.name: f.value for f in facts}, errors


def test_scalars_under_the_prefix_are_kept_with_their_type():
    facts, errors = values(("hello", {"hello.ready": True, "hello.lanes": 1, "hello.rate": 1.0, "hello.arch": "x"}))
    assert [(n, type(v), v) for n, v in facts.items()] == [
        ("hello.arch", str, "x"),
        ("hello.lanes", int, 1),
        ("hello.rate", float, 1.0),
        ("hello.ready", bool, True),
    ]
    assert errors == ()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("other.ready", True, "named hello.<fact>"),
        ("hello", True, "named hello.<fact>"),
        ("hello.", True, "named hello.<fact>"),
        ("helloworld.ready", True, "named hello.<fact>"),
        (7, True, "named hello.<fact>"),
        ("hello.list", [1], "found a list"),
        ("hello.bytes", b"x", "found a bytes"),
        ("hello.rate", math.nan, "a fact is finite"),
        ("hello.rate", -math.inf, "a fact is finite"),
    ],
)
def test_a_bad_fact_is_named_and_costs_no_other(name, value, says):
    facts, errors = values(("hello", {name: value, "hello.good": 1}))
    assert facts == {"hello.good": 1}
    assert len(errors) == 1
    assert says in errors[0]


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (RuntimeError("no such device\nmore"), "raised RuntimeError: no such device"),
        (RuntimeError(), "raised RuntimeError: "),
        ([1], "returned list"),
        (None, "returned NoneType"),
    ],
)
def test_a_plugin_that_fails_costs_no_other(found, says):
    facts, errors = values(("hello", found), ("world", {"world.ready": True}))
    assert facts == {"world.ready": True}
    assert errors == (errors[0],)
    assert errors[0].startswith("moe_facts of hello: ")
    assert says in errors[0]
    assert "more" not in errors[0].partition("moe_facts")[2].replace("returned", "")


def test_none_is_unknown():
    assert values(("hello", {"hello.ready": None})) == ({}, ())
    for one, other in ((None, 1), (1, None)):
        assert values(("hello", {"hello.x": one}), ("hello", {"hello.x": other})) == ({"hello.x": 1}, ())


@pytest.mark.parametrize(("one", "other"), [(1, 2), (1, True), ("a", "b")])
def test_plugins_of_one_prefix_may_agree_but_a_contradiction_is_unknown(one, other):
    assert values(("hello", {"hello.x": one}), ("hello", {"hello.x": one})) == ({"hello.x": one}, ())
    for first, second in ((one, other), (other, one)):
        facts, errors = values(("hello", {"hello.x": first}), ("hello", {"hello.x": second, "hello.y": 0}))
        assert facts == {"hello.y": 0}
        assert "unknown" in errors[0]


def test_facts_that_candidates_mention_are_found_in_gates_and_their_conditions():
    gates = (
        package("their_kernels", when=(is_("flag:THEIR_SWITCH", "1"),)),
        feature("flashinfer.bf16_moe"),
        flag("OTHER", "1"),
        quant_in(QuantAlgo.NONE),
        need(MoERejectReason.DEP_MISSING, "plugin:hello.ready", Equals(value=True)),
    )
    candidate = MoECandidate(
        identity="hello.a.b.any", kind=CandidateKind.ROUTING, family="HELLO", title="Hello", requirements=gates
    )
    assert mentioned_facts(Catalog.of([candidate])) == (
        "feature:flashinfer.bf16_moe",
        "flag:OTHER",
        "flag:THEIR_SWITCH",
        "package:their_kernels",
    )
