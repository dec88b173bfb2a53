"""What is timed: candidates and peers, bound over one copy of the experts wherever they share a layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch

from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import CandidateKind, DType, QuantAlgo
from moe_core.execution import TORCH_DTYPE, Binding, MoEBackend, SharesPrepared, bind_factory
from moe_core.explain.phrases import size
from moe_core.fused_weights import FusedExpertWeights, TakesFused
from moe_core.measure.experts import Experts, apart, dequantized_experts, num_bytes
from moe_core.measure.inputs import Tokens
from moe_core.measure.peers import CHAINS, GROUPED_MM, PEERS, Peer, peer_module
from moe_core.measure.results import Role
from moe_core.measure.site import Entrant, Site, entrants
from moe_core.testing.numerics import tolerance_of

COPIES = 2
"""Experts and the copies that candidates make of them are in memory together up to this fraction (1/2) of a device."""
DEQUANTIZED = 4
"""Quantized experts are dequantized where the values take up to this fraction (1/4) of a device."""


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
    experts: Sequence[Experts],
    *,
    peers: bool,
) -> Lineup:
    """Bind every candidate that is admitted at one of `tokens` at least, and the peers of a single rank."""
    lineup = Lineup([])
    shared: list[dict[str, Any]] = [{} for _ in experts]
    found = entrants(problem, tokens, site, CandidateKind.BACKEND, CHAINS if peers else frozenset[str]())
    copying = [entrant for entrant in found if entrant.tokens and not _copies_nothing(entrant, problem, site)]
    copies = len({entrant.candidate.prepared_layout or entrant.candidate.identity for entrant in copying})
    memory = site.deployment.environment.device_memory
    at_once = memory is None or (1 + copies) * sum(map(num_bytes, experts)) <= memory // COPIES
    for entrant in found:
        make = partial(_candidate, problem, entrant, site, experts, shared)
        if at_once or entrant not in copying:
            lineup.together.append(make())
        else:
            lineup.apart.append(make)
    if peers:
        lineup.together += _peers(problem, site, experts)
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
    experts: Sequence[Experts],
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


def _prepared(binding: Binding, weights: Experts, shared: dict[str, Any]) -> MoEBackend:
    backend: MoEBackend = bind_factory(binding.candidate)(binding)
    layout = binding.candidate.prepared_layout
    if layout in shared and isinstance(backend, SharesPrepared):
        backend.adopt(shared[layout])
        return backend
    if isinstance(weights, FusedExpertWeights) and isinstance(backend, TakesFused):
        backend.prepare_fused(weights)
    else:
        backend.prepare(apart(weights))
    if layout is not None and isinstance(backend, SharesPrepared):
        shared[layout] = backend.prepared
    return backend


def _run(backend: MoEBackend, tokens: Tokens) -> torch.Tensor:
    return backend.run_moe(tokens.context)


def _peers(problem: MoEProblem, site: Site, experts: Sequence[Experts]) -> list[Subject]:
    """Those for the problem's format; and where it is one, what runs from the values of its weights."""
    modules = cache(lambda: [peer_module(problem, weights) for weights in experts])
    found = [_peer(peer, Role.PEER, problem, site, modules) for peer in PEERS if peer.quant is problem.quant]
    if problem.quant is not QuantAlgo.NONE:
        values = partial(_dequantized, problem, site, experts)
        unquantized = _peer(GROUPED_MM, Role.ORIENTATION, problem, site, values)
        found.append(replace(unquantized, name=f"{GROUPED_MM.name} dequantized"))
    return found


def _dequantized(problem: MoEProblem, site: Site, experts: Sequence[Experts]) -> list[SimpleNamespace]:
    memory, dtype = site.deployment.environment.device_memory, TORCH_DTYPE[problem.dtype_act or DType.BFLOAT16]
    values = [of_set.shape.numel() for one in experts for of_set in apart(one).given().values()]
    needed = sum(values) * dtype.itemsize
    if memory is not None and needed > memory // DEQUANTIZED:
        raise ValueError(f"the experts in {dtype} take {size(needed)}, and a quarter of the device is less")
    plain = (dequantized_experts(apart(one), dtype) for one in experts)
    return [peer_module(problem, one) for one in plain]


def _peer(
    peer: Peer, role: Role, problem: MoEProblem, site: Site, modules: Callable[[], Sequence[SimpleNamespace]]
) -> Subject:
    broken, calls = peer.why_not(site.deployment.environment), list[Any]()
    if broken is None:
        try:
            calls = [peer.bind(module) for module in modules()]
        except Exception as error:
            broken = told(error)

    def why_not(tokens: int) -> str | None:
        return broken or peer.too_large(problem, tokens, free_bytes(site.device))

    return Subject(
        name=peer.name,
        role=role,
        tolerance=peer.tolerance(TORCH_DTYPE[problem.dtype_act or DType.BFLOAT16]),
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
