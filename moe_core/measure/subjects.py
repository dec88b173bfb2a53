"""What is timed: candidates and peers, bound over one copy of the experts wherever they share a layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import CandidateKind
from moe_core.execution import Binding, MoEBackend, SharesPrepared, bind_factory
from moe_core.fused_weights import FusedExpertWeights, TakesFused
from moe_core.measure.inputs import Tokens
from moe_core.measure.peers import CHAINS, PEER_TOLERANCE, PEERS
from moe_core.measure.results import Role
from moe_core.measure.site import Entrant, Site, entrants
from moe_core.testing.numerics import tolerance_in, tolerance_of


@dataclass(frozen=True)
class Subject:
    """Something that can be called with tokens, once for each set of experts."""

    name: str
    role: Role
    tolerance: float | None
    calls: tuple[Callable[[Tokens], Any], ...] = ()
    why_not: Callable[[int], str | None] = field(default=lambda tokens: None)
    """Why it cannot run at a number of tokens."""
    captured: Callable[[int], bool] = field(default=lambda tokens: False)
    """Whether it may be captured in a CUDA graph there."""
    backends: tuple[MoEBackend, ...] = ()


@dataclass
class Lineup:
    """Everybody who is measured for a problem, in groups that are in memory together."""

    together: list[Subject]
    apart: list[Callable[[], Subject]] = field(default_factory=list)
    """Those that would make one more copy of large experts: to be made and dropped one after another."""


def line_up(
    problem: MoEProblem,
    tokens: Sequence[int],
    site: Site,
    experts: Sequence[FusedExpertWeights],
    *,
    peers: bool,
    copies_at_once: bool = True,
) -> Lineup:
    """Bind every candidate that is admitted at one of `tokens` at least, and the peers of a single rank."""
    lineup = Lineup([])
    shared: list[dict[str, Any]] = [{} for _ in experts]
    beside = CHAINS if peers else frozenset[str]()
    for entrant in entrants(problem, tokens, site, CandidateKind.BACKEND, beside):
        make = partial(_candidate, problem, entrant, site, experts, shared)
        if copies_at_once or not entrant.tokens or _copies_nothing(entrant, problem, site):
            lineup.together.append(make())
        else:
            lineup.apart.append(make)
    if peers:
        lineup.together += [_peer(index, problem, site, experts) for index in range(len(PEERS))]
    return lineup


def _copies_nothing(entrant: Entrant, problem: MoEProblem, site: Site) -> bool:
    try:
        return isinstance(bind_factory(entrant.candidate)(_binding(entrant, problem, site)), TakesFused)
    except Exception:
        return True  # what is wrong with it is told when it is bound


def _binding(entrant: Entrant, problem: MoEProblem, site: Site) -> Binding:
    return site.bind(entrant.candidate, problem, max(entrant.tokens))


def _candidate(
    problem: MoEProblem,
    entrant: Entrant,
    site: Site,
    experts: Sequence[FusedExpertWeights],
    shared: Sequence[dict[str, Any]],
) -> Subject:
    candidate, backends, broken = entrant.candidate, list[MoEBackend](), None
    try:
        if entrant.tokens:
            binding = _binding(entrant, problem, site)
            backends = [_prepared(binding, *of_set) for of_set in zip(experts, shared, strict=True)]
    except Exception as error:  # a candidate that cannot be bound must not keep the others from being measured
        broken = told(error)

    def why_not(tokens: int) -> str | None:
        return broken or (None if tokens in entrant.tokens else entrant.refused.get(tokens, "it is not admitted"))

    dtype = site.bind(candidate, problem, 1).dtype
    return Subject(
        name=candidate.identity,
        role=Role.PEER if candidate.identity in CHAINS else Role.CANDIDATE,
        tolerance=tolerance_of(candidate, dtype),
        calls=tuple(partial(_run, backend) for backend in backends),
        why_not=why_not,
        captured=entrant.captured.__contains__,
        backends=tuple(backends),
    )


def _prepared(binding: Binding, weights: FusedExpertWeights, shared: dict[str, Any]) -> MoEBackend:
    backend: MoEBackend = bind_factory(binding.candidate)(binding)
    layout = binding.candidate.prepared_layout
    if layout in shared and isinstance(backend, SharesPrepared):
        backend.adopt(shared[layout])
        return backend
    if isinstance(backend, TakesFused):
        backend.prepare_fused(weights)
    else:
        backend.prepare(weights.apart())
    if layout is not None and isinstance(backend, SharesPrepared):
        shared[layout] = backend.prepared
    return backend


def _run(backend: MoEBackend, tokens: Tokens) -> torch.Tensor:
    return backend.run_moe(tokens.context)


def _peer(index: int, problem: MoEProblem, site: Site, experts: Sequence[FusedExpertWeights]) -> Subject:
    peer, broken, calls = PEERS[index], PEERS[index].why_not(site.deployment.environment), list[Any]()
    if broken is None:
        try:
            calls = [peer.bind(problem, weights) for weights in experts]
        except Exception as error:
            broken = told(error)

    def why_not(tokens: int) -> str | None:
        return broken or peer.too_large(problem, tokens, free_bytes(site.device))

    return Subject(
        name=peer.name,
        role=Role.PEER,
        tolerance=tolerance_in(experts[0].fc1_EGH.dtype, PEER_TOLERANCE),
        calls=tuple(calls),
        why_not=why_not,
        captured=lambda tokens: True,
    )


def free_bytes(device: torch.device) -> int:
    """Memory that tensors may still take: on a CUDA device what is free or kept for reuse, else that of the host."""
    if device.type != "cuda":
        import os

        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def told(error: Exception) -> str:
    """An error in one line."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first:.200}" if first else type(error).__name__
