"""A problem at a size that runs anywhere, with the structure that decides what is selected."""

from __future__ import annotations

from moe_core.contract.problem import MoEProblem

MOST_HIDDEN = 512
MOST_EXPERTS = 16


def reduced(problem: MoEProblem) -> tuple[MoEProblem, tuple[str, ...]]:
    """The problem, narrower and with fewer experts by powers of two; and what was changed, as ``top_k 8 -> 4``.

    The ratio of hidden to intermediate size, whole quantization groups, and the groups of grouped routing are kept.
    """
    smaller = problem
    while (smaller.hidden_size or 0) > MOST_HIDDEN and (narrower := _narrower(smaller)) is not None:
        smaller = narrower
    while (smaller.num_experts or 0) > MOST_EXPERTS and (fewer := _fewer(smaller)) is not None:
        smaller = fewer
    changes = tuple(
        f"{field} {before} -> {after}"
        for field in type(problem).model_fields
        if (before := getattr(problem, field)) != (after := getattr(smaller, field))
    )
    return smaller, changes


def _narrower(problem: MoEProblem) -> MoEProblem | None:
    """Half as wide; ``None`` when a size is odd or would cut a quantization group."""
    step = 2 * (problem.quant_group_size or 1)
    widths = {
        field: width
        for field in ("hidden_size", "intermediate_size", "model_hidden_size")
        if (width := getattr(problem, field)) is not None
    }
    if any(width % step for width in widths.values()):
        return None
    return problem.evolve(**{field: width // 2 for field, width in widths.items()})


def _fewer(problem: MoEProblem) -> MoEProblem | None:
    """Half as many experts; ``None`` when top-k, or a group of grouped routing, needs them all."""
    experts, groups = problem.num_experts or 0, problem.num_expert_groups or 1
    # A group's score may be the sum of its two best experts.
    if experts % 2 or (experts // 2) % groups or (groups > 1 and experts // 2 < 2 * groups):
        return None
    reachable = experts // 2 // groups * (problem.topk_group or groups)
    if (problem.top_k or 1) > reachable:
        return None
    return problem.evolve(num_experts=experts // 2)
