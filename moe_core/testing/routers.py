"""Routers for tests and benchmarks: fixed, evenly spread, and logits that balance a real method over EP ranks.

T tokens, K experts per token, E experts, P EP ranks, G groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import RoutingMethodType as Method
from moe_core.layer import ConfigurableMoE
from moe_core.routing.router import Route

CHOSEN, OTHER = 10.0, -10.0
HIGHEST, LOWEST = 4.0, 1.0
BEAM = 32

FLAT = frozenset({Method.DEFAULT, Method.RENORMALIZE, Method.RENORMALIZE_NAIVE, Method.LLAMA4})
FLAT_WITHOUT_BIAS = frozenset({Method.MINIMAX2, Method.MINIMAX3, Method.SIGMOID_RENORM, Method.DEEPSEEK_V4})


def static_route(ids_TK: torch.Tensor, weights_TK: torch.Tensor | None = None) -> Route:
    """The same answer whatever the logits: ids int32 ``[T, K]``, and weights float32 or ones."""
    if ids_TK.dtype is not torch.int32 or ids_TK.dim() != 2:
        raise ValueError(f"ids are {ids_TK.dtype} of {ids_TK.dim()} dimensions, needed int32 [T, K]")
    weights = torch.ones(ids_TK.shape, device=ids_TK.device) if weights_TK is None else weights_TK
    if weights.dtype is not torch.float32 or weights.shape != ids_TK.shape:
        raise ValueError(f"weights are {weights.dtype} {list(weights.shape)}, needed float32 {list(ids_TK.shape)}")
    return lambda logits, bias, input_ids, table: (ids_TK, weights)


def load_balanced_route(top_k: int) -> Route:
    """Pair j of all T * K pairs goes to expert ``j mod E``, with weight one."""

    def route(
        logits_TE: torch.Tensor, bias: torch.Tensor | None, input_ids: torch.Tensor | None, table: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        num_tokens, num_experts = logits_TE.shape
        pairs = torch.arange(num_tokens * top_k, device=logits_TE.device, dtype=torch.int32)
        ids_TK = (pairs % num_experts).view(num_tokens, top_k)
        return ids_TK, torch.ones(ids_TK.shape, device=logits_TE.device)

    return route


@contextmanager
def routed_by(layer: ConfigurableMoE, route: Route) -> Iterator[None]:
    """Inside the block, `layer` routes by `route`."""
    before = layer.router.replace(route)
    try:
        yield
    finally:
        layer.router.replace(before)


def perfect_logits(
    problem: MoEProblem,
    num_tokens: int,
    *,
    ep_size: int,
    ep_rank: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Logits ``[T, E]`` from which the problem's method chooses experts that are balanced over the EP ranks.

    Methods with a correction bias must be given one of zeros. Per rank, the numbers of chosen pairs differ by one at
    most; with groups, as long as each group's experts are on few ranks.

    Raises:
        ValueError: sizes are unknown or do not divide, or the method cannot be balanced by logits.
    """
    experts, top_k = problem.num_experts, problem.top_k
    if experts is None or top_k is None:
        raise ValueError(f"num_experts is {experts} and top_k is {top_k}: both must be known")
    if experts % ep_size or not 0 <= ep_rank < ep_size:
        raise ValueError(f"num_experts {experts} over ep_size {ep_size}, rank {ep_rank}: needed equal shares")
    groups = problem.num_expert_groups or 1
    if problem.routing is Method.DEEPSEEK_V3 or (problem.routing is Method.GROUPED_SOFTMAX and groups > 1):
        planner = _Grouped(experts, top_k, groups, problem.topk_group or groups, ep_size, ep_rank)
        return _descending(planner, num_tokens, dtype).to(device)
    if problem.routing in FLAT or problem.routing in FLAT_WITHOUT_BIAS:
        return _flat(experts, top_k, num_tokens, ep_size, ep_rank, dtype).to(device)
    known = ", ".join(sorted({*FLAT, *FLAT_WITHOUT_BIAS, Method.DEEPSEEK_V3, Method.GROUPED_SOFTMAX}))
    raise ValueError(f"routing {problem.routing} cannot be balanced by logits; methods that can: {known}")


def _flat(experts: int, top_k: int, num_tokens: int, ranks: int, rank: int, dtype: torch.dtype) -> torch.Tensor:
    share = experts // ranks
    q = torch.arange(num_tokens * top_k).view(num_tokens, top_k) + rank
    ids_TK = q % ranks * share + q // ranks % share
    logits = torch.full((num_tokens, experts), OTHER, dtype=dtype)
    return logits.scatter_(1, ids_TK, CHOSEN)


def _descending(planner: _Grouped, num_tokens: int, dtype: torch.dtype) -> torch.Tensor:
    ids_TK = torch.tensor([planner.experts_of(t) for t in range(num_tokens)], dtype=torch.int64)
    ids_TK = ids_TK.view(num_tokens, planner.top_k)
    values_K = torch.linspace(HIGHEST, LOWEST, planner.top_k).to(dtype)
    logits = torch.full((num_tokens, planner.num_experts), OTHER, dtype=dtype)
    return logits.scatter_(1, ids_TK, values_K.expand(num_tokens, planner.top_k))


class _State(NamedTuple):
    groups: tuple[int, ...] = ()
    """Chosen group of each slot so far."""
    mismatches: int = 0
    """Slots whose group has no expert on the desired rank."""
    preference: int = 0

    @property
    def active(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.groups))

    @property
    def order(self) -> tuple[int, int, int, int]:
        most_used = max(self.groups.count(group) for group in self.groups)
        return self.mismatches, most_used, self.preference, -len(self.active)


class _Grouped:
    """Plans a token's experts group by group: few groups, each with experts on the rank that is due."""

    def __init__(self, experts: int, top_k: int, groups: int, topk_group: int, ranks: int, rank: int) -> None:
        self.num_experts, self.top_k, self._groups, self._ranks, self._rank = experts, top_k, groups, ranks, rank
        self._size, self._share = experts // groups, experts // ranks
        if top_k > min(topk_group, groups) * self._size:
            raise ValueError(f"top_k {top_k} is more than {min(topk_group, groups)} groups of {self._size} hold")
        self._most_groups = min(topk_group, top_k, groups)

    def experts_of(self, token: int) -> list[int]:
        """The experts of a token, best first."""
        owners = [(token * self.top_k + slot + self._rank) % self._ranks for slot in range(self.top_k)]
        chosen: list[int] = []
        for slot, group in enumerate(self._search(token, owners)):
            members = list(range(group * self._size, (group + 1) * self._size))
            on_owner = [e for e in members if e // self._share == owners[slot]] or members
            shift = token + self._rank + slot
            free = [e for e in (*_rotated(on_owner, shift), *_rotated(members, shift)) if e not in chosen]
            if not free:
                raise ValueError(f"group {group} has no expert left for slot {slot} of token {token}")
            chosen.append(free[0])
        return chosen

    def _search(self, token: int, owners: list[int]) -> tuple[int, ...]:
        beam = [_State()]
        for slot, owner in enumerate(owners):
            preferred = _rotated(self._on(owner), token + self._rank + slot)
            grown = [self._grow(state, group, preferred) for state in beam for group in self._next(state, preferred)]
            if not grown:
                raise ValueError(f"no group has an expert left for slot {slot} of token {token}")
            beam = sorted(grown, key=lambda state: state.order)[:BEAM]
        return beam[0].groups

    def _on(self, owner: int) -> list[int]:
        first, last = owner * self._share, (owner + 1) * self._share - 1
        return list(range(first // self._size, last // self._size + 1))

    def _next(self, state: _State, preferred: list[int]) -> list[int]:
        active = state.active
        if len(active) < self._most_groups:
            groups = [*preferred, *(g for g in active if g not in preferred)]
        else:
            groups = [g for g in preferred if g in active] or list(active)
        return [g for g in groups if state.groups.count(g) < self._size]

    def _grow(self, state: _State, group: int, preferred: list[int]) -> _State:
        place = preferred.index(group) if group in preferred else len(preferred)
        return _State((*state.groups, group), state.mismatches + (group not in preferred), state.preference + place)


def _rotated(values: list[int], left: int) -> list[int]:
    cut = left % len(values)
    return values[cut:] + values[:cut]
