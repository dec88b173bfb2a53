"""Legal values near a failing one, found by asking the failed requirement again, never by guessing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from moe_core.contract.check import check
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.eligibility import Rejection
from moe_core.contract.facts import facts_of
from moe_core.contract.partition import redundant_experts
from moe_core.contract.predicate import AtLeast, AtMost, MultipleOf, OneOf
from moe_core.contract.problem import MoEProblem
from moe_core.contract.requirement import Requirement

SIZED = frozenset(
    {
        "ep_size", "tp_size", "dp_size", "use_dp", "attention_tp_size", "parallel_size", "world_size", "num_nodes",
        "ranks_per_node", "num_experts", "num_slots", "slots_per_rank", "intermediate_size_per_tp", "fc1_rows_per_tp",
        "intermediate_groups", "weight_bytes", "memory_needed",
    }
)  # fmt: skip
"""Facts that parallel sizes and slots change, or that are compared with them."""
LARGEST_GROUP = 1024
SHOWN = 4


def reshaped(deployment: MoEDeployment, ep_size: int, tp_size: int) -> MoEDeployment | None:
    """The deployment with other MoE sizes; ``None`` where its attention sizes cannot be kept.

    The world keeps its size when it can; else attention data parallelism that spanned the world still does.
    """
    world = ep_size * tp_size * deployment.cluster_size
    dp = deployment.dp_size if world % deployment.dp_size == 0 else world
    if deployment.dp_size == deployment.world_size:
        dp = world
    return deployment.evolve(
        ep_size=ep_size, tp_size=tp_size, dp_size=dp, parallel_size=None, attention_tp_size=None,
        num_nodes=None, ranks_per_node=None,
    )  # fmt: skip


def legal_neighbours(rejection: Rejection, problem: MoEProblem, deployment: MoEDeployment) -> tuple[str, ...]:
    """Changes of one size that meet the failed requirement, for people: ``tp_size 2, 3 or 6``.

    Empty when no change of a size that this module varies can help.
    """
    requirement = rejection.requirement
    if requirement is None:
        return ()
    found = []
    if not SIZED.isdisjoint(requirement.facts):
        found = [*_parallel_sizes(requirement, problem, deployment), *_slots(requirement, problem, deployment)]
    return tuple(found) or tuple(_nearest(requirement, rejection))


def _meets(requirement: Requirement, problem: MoEProblem, deployment: MoEDeployment) -> bool:
    return requirement.met(facts_of(problem, deployment)) is True


def _parallel_sizes(requirement: Requirement, problem: MoEProblem, deployment: MoEDeployment) -> Iterator[str]:
    def legal(sizes: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        candidates = ((s, reshaped(deployment, *s)) for s in sizes)
        return [s for s, d in candidates if d is not None and not check(problem, d) and _meets(requirement, problem, d)]

    ep, tp, experts = deployment.ep_size, deployment.tp_size, problem.num_experts
    world = ep * tp
    if tp > 1:
        shorter = legal((ep, t) for t in range(2, 2 * tp + 1) if t != tp and _divides(t, problem.intermediate_size))
        if shorter:
            yield f"tp_size {_or(t for _, t in shorter)}"
        same_world = legal((world // t, t) for t in range(1, tp) if world % t == 0)
        for e, t in same_world[:1]:
            yield f"ep_size {e}" + (f" with tp_size {t}" if t > 1 else " instead of tensor parallelism")
    elif ep > 1 or requirement.fact in ("ep_size", "num_experts", "num_slots", "memory_needed", "weight_bytes"):
        others = legal((e, 1) for e in _group_sizes(experts) if e != ep)
        near = sorted(others, key=lambda s: (abs(s[0] - ep), s[0]))[:SHOWN]
        if near:
            yield f"ep_size {_or(sorted(e for e, _ in near))}"


def _group_sizes(experts: int | None) -> Iterator[int]:
    limit = min(experts or LARGEST_GROUP, LARGEST_GROUP)
    return (e for e in range(1, limit + 1) if experts is None or experts % e == 0)


def _slots(requirement: Requirement, problem: MoEProblem, deployment: MoEDeployment) -> Iterator[str]:
    experts, ep = problem.num_experts, deployment.ep_size
    if experts is None or not (extra := redundant_experts(experts, ep)):
        return
    with_slots = deployment.evolve(num_slots=experts + extra, eplb_enabled=True)
    if _meets(requirement, problem, with_slots):
        slots = experts + extra
        yield f"{extra} redundant experts: num_slots {slots} = {ep} x {slots // ep}, which needs EPLB"


def _nearest(requirement: Requirement, rejection: Rejection) -> Iterator[str]:
    found, test = rejection.found, requirement.test
    if isinstance(found, bool) or not isinstance(found, int):
        return
    if isinstance(test, OneOf):
        numbers = sorted(v for v in test.values if isinstance(v, int) and not isinstance(v, bool))
        near = [
            max((n for n in numbers if n < found), default=None),
            min((n for n in numbers if n > found), default=None),
        ]
        if any(n is not None for n in near) and requirement.fact != "sm":
            yield f"nearest {requirement.fact} {_or(n for n in near if n is not None)}"
    elif isinstance(test, MultipleOf) and test.times is None:
        step = int(test.value)
        below, above = found // step * step, -(-found // step) * step
        yield f"nearest {requirement.fact} {_or(n for n in (below, above) if n)}"
    elif isinstance(test, AtMost | AtLeast) and test.times is None:
        yield f"{requirement.fact} {test.value:g}"


def _divides(part: int, whole: int | None) -> bool:
    return whole is None or whole % part == 0


def _or(values: Iterable[int]) -> str:
    shown = [str(v) for v in values]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"
