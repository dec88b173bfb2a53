"""From a declaration alone: questions that it accepts, and questions on both sides of every limit."""

import pytest
from kit_examples.honest import declaration

from moe_core.contract.candidate import MoEStaticCapability
from moe_core.contract.declare import divisible, is_, isnt, need, package, quant_in, sm_in
from moe_core.contract.gates import gates_of
from moe_core.contract.predicate import AtLeast, AtMost, MultipleOf, SameAs
from moe_core.contract.reasons import MoERejectReason as Reason
from moe_core.contract.vocabulary import QuantAlgo
from moe_core.resolve import can_implement
from moe_core.testing.boundary import PLAIN, boundary_cases, settled, typical_question

PICKY = declaration(
    "picky",
    requirements=(
        quant_in(QuantAlgo.NVFP4),
        sm_in(100, 103),
        package("deep_gemm", at_least="2.1", below="3"),
        divisible("fc1_rows_per_tp", 128),
        divisible("hidden_size", 256, when=(is_("is_gated", True),)),
        need(Reason.TOPK_UNSUPPORTED, "top_k", AtMost(value=16)),
        need(Reason.TOPOLOGY_UNSUPPORTED, "ep_size", AtLeast(value=2)),
        need(Reason.TOPOLOGY_UNSUPPORTED, "ep_size", SameAs(fact="parallel_size"), when=(isnt("tp_size", 2),)),
    ),
    capabilities=MoEStaticCapability(supports_eplb=True, needs_jit=True),
)


def test_a_typical_question_is_accepted_with_nothing_assumed():
    answer = can_implement(PICKY, *typical_question(PICKY))
    assert answer.eligible
    assert answer.assumptions == ()


def test_a_contradiction_has_no_typical_question():
    assert typical_question(declaration("never", requirements=(sm_in(90), sm_in(100)))) is None


def test_a_search_keeps_to_what_is_allowed():
    assert settled(PICKY, PLAIN, lambda q: q.environment == PLAIN.environment) is None
    moved = settled(declaration("plain"), PLAIN.with_problem(hidden_size=33), lambda q: q.environment.sm == 90)
    assert moved.problem.hidden_size == 32


@pytest.mark.parametrize("gate", gates_of(PICKY), ids=lambda gate: f"{gate.fact}: {gate.needed}")
def test_every_limit_has_questions_on_both_sides(gate):
    cases = [case for case in boundary_cases(PICKY) if case.requirement == gate]
    within, past = ([c for c in cases if c.met is met] for met in (True, False))
    assert within
    assert past
    assert all(gate.met(case.question.facts) is case.met for case in cases)
    assert any(can_implement(PICKY, *case.question) for case in within)
    for case in past:
        assert (gate.reason, gate.fact) in {(r.reason, r.fact) for r in can_implement(PICKY, *case.question).rejections}


def test_a_case_says_where_it_is():
    text = {str(c) for c in boundary_cases(PICKY) if c.requirement.fact == "top_k"}
    assert text == {
        "top_k = 16, within the limit at most 16",
        "top_k = 15, within the limit at most 16",
        "top_k = 17, past the limit at most 16",
    }


def test_a_multiple_of_another_fact_bites():
    even = declaration("even", requirements=(need(Reason.SHAPE_UNALIGNED, "hidden_size", MultipleOf(times="tp_size")),))
    assert any(not c.met and c.requirement.fact == "hidden_size" for c in boundary_cases(even))
