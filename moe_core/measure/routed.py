"""From router logits: routing alone, and routing with experts behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import CandidateKind, RoutingMethodType
from moe_core.execution import MoERunContext, bind_factory
from moe_core.measure.inputs import Tokens
from moe_core.measure.results import Role
from moe_core.measure.site import Entrant, Site, entrants
from moe_core.measure.subjects import Subject, told
from moe_core.routing import Route

ROUTING_TOLERANCE = 1e-5
"""Relative error of weights; a wrong id costs far more."""


def can_route(problem: MoEProblem) -> bool:
    """Whether router logits alone say where tokens go."""
    return problem.routing not in (None, RoutingMethodType.UNSPECIFIED) and not problem.hashed_routing


def correction_bias(problem: MoEProblem, device: torch.device, seed: int) -> torch.Tensor | None:
    """A random bias ``[E]`` of the choice, where the problem has one."""
    if not problem.routing_bias:
        return None
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(problem.num_experts or 1, device=device, generator=generator) * 0.1


def routers(problem: MoEProblem, tokens: tuple[int, ...], site: Site, bias_E: torch.Tensor | None) -> list[Subject]:
    """Every routing kernel that is admitted at one of `tokens`."""
    return [_router(e, problem, site, bias_E) for e in entrants(problem, tokens, site, CandidateKind.ROUTING)]


def _router(entrant: Entrant, problem: MoEProblem, site: Site, bias_E: torch.Tensor | None) -> Subject:
    calls: tuple[Callable[[Tokens], Any], ...] = ()
    broken = None
    try:
        if entrant.tokens:
            route = bind_factory(entrant.candidate)(site.bind(entrant.candidate, problem, max(entrant.tokens)))
            calls = (partial(_route, route, bias_E),)
    except Exception as error:
        broken = told(error)

    def why_not(tokens: int) -> str | None:
        return broken or (None if tokens in entrant.tokens else entrant.refused.get(tokens, "it is not admitted"))

    return Subject(
        name=entrant.candidate.identity,
        role=Role.ROUTING,
        tolerance=ROUTING_TOLERANCE,
        calls=calls,
        why_not=why_not,
        captured=entrant.captured.__contains__,
    )


def _route(route: Route, bias_E: torch.Tensor | None, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
    return route(tokens.logits_TE, bias_E, None, None)


def behind(router: Subject, experts: Subject) -> Subject:
    """`experts` fed by `router`."""

    def call(compute: Callable[[Tokens], Any], tokens: Tokens) -> Any:
        ids_TK, scales_TK = router.calls[0](tokens)
        context = MoERunContext(x=tokens.context.x, token_selected_slots=ids_TK, token_final_scales=scales_TK)
        if not experts.backends:  # a peer, which takes ids and weights in the types of torch's routers
            tokens = replace(tokens, ids_TK=ids_TK.long(), scales_TK=scales_TK.to(context.x.dtype))
        return compute(replace(tokens, context=context))

    return Subject(
        name=f"{router.name} + {experts.name}",
        role=Role.LAYER,
        tolerance=experts.tolerance,
        calls=tuple(partial(call, compute) for compute in experts.calls),
        why_not=lambda tokens: router.why_not(tokens) or experts.why_not(tokens),
        captured=lambda tokens: router.captured(tokens) and experts.captured(tokens),
    )
