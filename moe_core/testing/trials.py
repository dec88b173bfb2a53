"""Trials of a backend on the machine at hand: the small problems that it declares to compute here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.predicate import show
from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import CandidateKind, Device, DType, QuantAlgo, SchedulerKind
from moe_core.environment import mentioned_facts, probe
from moe_core.registry import Registry, plugin_facts
from moe_core.resolve import can_implement
from moe_core.testing.backends import BackendTrial, UntriedError
from moe_core.testing.boundary import settled
from moe_core.testing.problems import ACTIVATIONS, small_problem
from moe_core.testing.question import Question


def machine_for(registry: Registry) -> MoEEnvironment:
    """This machine, with what the registered plugins find on it and mention."""
    return probe(plugin_facts=plugin_facts(registry), mentioned=mentioned_facts(registry.catalog))


def trials_of(candidate: MoECandidate, machine: MoEEnvironment) -> tuple[BackendTrial, ...]:
    """A trial per activation, element type, odd size and format that `candidate` takes on `machine`, at its limits.

    Raises :class:`UntriedError` when there is none.
    """
    untried = _why_not(candidate)
    if untried is not None:
        raise UntriedError(untried)
    place = MoEDeployment(environment=machine)
    found = (settled(candidate, Question(p, place), partial(_is_same_kind, p, place)) for p in _problems())
    problems = dict.fromkeys(question.problem for question in found if question is not None)
    if not problems:
        reasons = can_implement(candidate, small_problem(), place).rejections
        raise UntriedError(
            f"{candidate} computes no small problem here; of an unquantized one "
            + "; ".join(f"{r.fact} is {show(r.found)}, needed {r.needed}" for r in reasons)
        )
    device = torch.device("cuda" if machine.device is Device.CUDA else "cpu")
    return tuple(BackendTrial(candidate, problem, device) for problem in problems)


def check_all(check: Callable[[BackendTrial], None], trials: Iterable[BackendTrial]) -> None:
    """`check` every trial; what it raises names the problem. Raises :class:`UntriedError` when it proves nothing."""
    untried: UntriedError | None = None
    proved = False
    for trial in trials:
        try:
            check(trial)
        except UntriedError as error:
            untried = error
        except Exception as error:
            error.add_note(f"{trial.candidate}, {trial.problem.model_dump_json(exclude_defaults=True)}")
            raise
        else:
            proved = True
    if untried is not None and not proved:
        raise untried


def _why_not(candidate: MoECandidate) -> str | None:
    if candidate.kind is not CandidateKind.BACKEND:
        return f"{candidate} is no backend: there is nothing to compute"
    if candidate.factory is None:
        return f"{candidate} has no factory: it is declared only"
    if candidate.scheduler_kind is SchedulerKind.FUSED_COMM:
        return f"{candidate} exchanges tokens in its kernel: it cannot run on one rank"
    return None


def _problems() -> Iterator[MoEProblem]:
    for fields in ACTIVATIONS.values():
        yield small_problem(**fields)
    for dtype in (DType.FLOAT16, DType.FLOAT32):
        yield small_problem(dtype_act=dtype)
    yield small_problem(hidden_size=40, intermediate_size=24, num_experts=5, top_k=1)
    for quant in QuantAlgo:
        if quant is not QuantAlgo.NONE:
            # Two of the widest groups, so that tensor parallelism can part them.
            yield small_problem(quant=quant, hidden_size=256, intermediate_size=256, num_experts=4, top_k=2)


def _is_same_kind(problem: MoEProblem, place: MoEDeployment, question: Question) -> bool:
    changed = question.problem
    kept = ("quant", "dtype_act", "activation", "activation_constants", "clamp_after_silu", "bias")
    return question.deployment == place and all(getattr(changed, f) == getattr(problem, f) for f in kept)
