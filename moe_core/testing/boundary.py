"""Questions at the edges of what a candidate declares: at each limit, one before it and one past it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Final, NamedTuple

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import MoEEnvironment, Package
from moe_core.contract.facts import FactValue
from moe_core.contract.gates import gates_of
from moe_core.contract.predicate import AtLeast, AtMost, Equals, MultipleOf, SameAs
from moe_core.contract.problem import MoEProblem
from moe_core.contract.requirement import Condition, Requirement
from moe_core.contract.vocabulary import Device, DType, LinkKind, QuantAlgo, RoutingMethodType
from moe_core.resolve.evaluate import can_implement
from moe_core.testing.edges import Edges, edges_of
from moe_core.testing.question import Question
from moe_core.testing.steer import with_fact

ROUNDS: Final = 8
"""Passes over the requirements: meeting one may break another, which the next pass mends."""

PLAIN: Final = Question(
    MoEProblem(
        quant=QuantAlgo.NONE, dtype_act=DType.BFLOAT16, hidden_size=2048, model_hidden_size=2048,
        intermediate_size=1024, num_experts=16, top_k=2, bias=False, routing=RoutingMethodType.RENORMALIZE,
        num_expert_groups=1, topk_group=1, renormalize=True, routed_scaling_factor=1.0, routing_bias=False,
        num_shared_experts=0,
    ),
    MoEDeployment(
        max_num_tokens=64, moe_max_num_tokens=64, max_dispatch_tokens=64, num_nodes=1,
        environment=MoEEnvironment(
            device=Device.CUDA, device_name="a GPU", sm=90, num_sms=132, device_memory=2**37,
            shared_memory_per_block=232_448, devices_per_node=8, link=LinkKind.NVLINK, cuda_version="13.0",
            driver_version="580.65", python_version="3.12", can_jit=True,
            packages=(Package(name="torch", version="2.13.0"), Package(name="triton", version="3.8.0")),
        ),
    ),
)  # fmt: skip
"""A small unquantized layer on one GPU, everything known: where the search for other questions starts."""


class BoundaryCase(NamedTuple):
    """A question in which the fact of `requirement` has a value at its limit (`met`) or just past it."""

    question: Question
    requirement: Requirement
    value: FactValue
    met: bool

    def __str__(self) -> str:
        side = "within" if self.met else "past"
        return f"{self.requirement.fact} = {self.value!r}, {side} the limit {self.requirement.needed}"


@lru_cache(maxsize=256)
def typical_question(candidate: MoECandidate) -> Question | None:
    """A question that `candidate` declares to accept; ``None`` when none was found."""
    return settled(candidate, PLAIN)


@lru_cache(maxsize=256)
def boundary_cases(candidate: MoECandidate) -> tuple[BoundaryCase, ...]:
    """Questions at and just past each limit of `candidate`; those within it are accepted where that can be had."""
    typical = typical_question(candidate) or PLAIN
    return tuple(case for gate in gates_of(candidate) for case in _cases_of(candidate, gate, typical))


def settled(
    candidate: MoECandidate, question: Question, allowed: Callable[[Question], bool] = lambda question: True
) -> Question | None:
    """`question` changed, through `allowed` ones only, until `candidate` declares to accept it.

    ``None`` when the search, which mends one requirement at a time, finds no such question.
    """
    gates = gates_of(candidate)
    for _ in range(ROUNDS):
        unmet = [gate for gate in gates if not gate.met(question.facts)]
        for gate in unmet:
            question = next(filter(allowed, _mended(gate, question)), question)
        if not unmet:
            break
    return question if can_implement(candidate, *question) else None


def _mended(gate: Requirement, question: Question) -> Iterator[Question]:
    """Versions of `question` that meet `gate`: by its fact, by what that is compared with, or by its conditions."""
    if gate.met(question.facts):
        return
    edges = _edges(gate, question)
    proposals = [(gate.fact, value) for value in edges.inside]
    found = question.facts[gate.fact]
    if isinstance(gate.test, AtLeast | AtMost | MultipleOf) and gate.test.times and isinstance(found, int):
        proposals.append((gate.test.times, 1 if isinstance(gate.test, MultipleOf) else found))
    for condition in gate.when:
        proposals += [(condition.fact, v) for v in _edges(condition, question).outside]
    if len(gate.unless) == 1:
        [condition] = gate.unless
        proposals += [(condition.fact, v) for v in _edges(condition, question).inside]
    for fact, value in proposals:
        changed = with_fact(question, fact, value)
        if changed is not None and gate.met(changed.facts):
            yield changed


def _cases_of(candidate: MoECandidate, gate: Requirement, typical: Question) -> Iterator[BoundaryCase]:
    base = _where_it_bites(gate, typical)
    edges = _edges(gate, base)
    for value in edges.inside:
        question = with_fact(base, gate.fact, value)
        if question is not None and gate.met(question.facts):
            accepted = settled(candidate, question, partial(_has, gate.fact, value))
            yield BoundaryCase(accepted or question, gate, value, met=True)
    for fact, value in [(gate.fact, value) for value in edges.outside] + _from_the_other_side(gate, base):
        question = with_fact(base, fact, value)
        if question is not None and gate.met(question.facts) is False:
            yield BoundaryCase(question, gate, question.facts[gate.fact], met=False)


def _has(fact: str, value: FactValue, question: Question) -> bool:
    return question.facts[fact] == value


def _where_it_bites(gate: Requirement, question: Question) -> Question:
    """`question` in which `gate` applies, and some value would fail it."""
    for condition in gate.when:
        question = _made(condition, question, true=True) or question
    if gate.unless:
        question = _made(gate.unless[0], question, true=False) or question
    if isinstance(gate.test, MultipleOf) and gate.test.times and gate.test.bound(question.facts) == 1:
        question = with_fact(question, gate.test.times, 2) or question
    return question


def _from_the_other_side(gate: Requirement, question: Question) -> list[tuple[str, FactValue]]:
    """Changes that may fail `gate` by what it compares with, or by a value that only its conditions name."""
    changes = [(c.fact, v) for c in gate.when if c.fact == gate.fact for v in _edges(c, question).inside]
    if isinstance(gate.test, SameAs):
        found = question.facts[gate.fact]
        if found is not None and not isinstance(found, tuple):
            others = edges_of(Equals(value=found), gate.test.fact, question.facts).outside
            changes += [(gate.test.fact, value) for value in others]
    return changes


def _made(condition: Condition, question: Question, *, true: bool) -> Question | None:
    """`question` in which `condition` holds, or does not."""
    if condition.holds(question.facts) is true:
        return question
    edges = _edges(condition, question)
    for value in edges.inside if true else edges.outside:
        changed = with_fact(question, condition.fact, value)
        if changed is not None and condition.holds(changed.facts) is true:
            return changed
    return None


def _edges(condition: Condition, question: Question) -> Edges:
    return edges_of(condition.test, condition.fact, question.facts)
