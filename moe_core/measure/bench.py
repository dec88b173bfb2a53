"""The bench: for each shape and number of tokens, candidates and peers over the same experts and tokens."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from functools import cached_property
from statistics import fmean

import torch

from moe_core.contract.problem import MoEProblem
from moe_core.execution import MoERunContext
from moe_core.measure.experts import Experts, num_bytes, random_experts
from moe_core.measure.floor import Ceilings, Floor, floor_of
from moe_core.measure.inputs import TokenSource, experts_of
from moe_core.measure.judge import ExpertsJudge, RoutingJudge
from moe_core.measure.results import Cell, Role, Row
from moe_core.measure.routed import behind, can_route, correction_bias, routers
from moe_core.measure.rows import measure_rows
from moe_core.measure.shapes import Shape
from moe_core.measure.site import Site
from moe_core.measure.subjects import Lineup, Subject, line_up
from moe_core.routing import RoutingConfig, select_experts
from moe_core.testing.numerics import FLOAT32_FLOOR, relative_error

MOST_SETS = 16


@torch.inference_mode()
def measure_shape(shape: Shape, tokens: Sequence[int], site: Site, ceilings: Ceilings) -> Iterator[Cell]:
    """A cell for each number of tokens as it is done; a cell that comes again has more rows than before.

    Raises ``ValueError`` when the format or a size is unknown.
    """
    problem = shape.problem
    release(site.device)
    experts = expert_sets(problem, site)
    lineup = line_up(problem, tokens, site, experts, peers=True)
    bias_E = correction_bias(problem, site.device, site.seed)
    routing = routers(problem, tuple(tokens), site, bias_E) if can_route(problem) else []
    cells: dict[int, Cell] = {}
    benches: dict[int, _CellBench] = {}
    for count in tokens:
        bench = benches[count] = _CellBench(shape, count, site, ceilings, experts[0])
        rows = bench.rows(lineup.together)
        rows += bench.from_logits(routing, lineup, rows, bias_E)
        cells[count] = bench.cell(rows)
        give_back(site.device)
        yield cells[count]
    for make in lineup.apart:
        subject = make()
        for count, bench in benches.items():
            cells[count] = cells[count].evolve(rows=(*cells[count].rows, *bench.rows([subject])))
            yield cells[count]
        del subject
        release(site.device)


def expert_sets(problem: MoEProblem, site: Site) -> list[Experts]:
    """Random experts; several sets of them on a device whose L2 would hold a good part of one."""
    first = random_experts(problem, site.device, site.seed)
    sets = 1
    if site.device.type == "cuda":
        cache = torch.cuda.get_device_properties(site.device).L2_cache_size
        sets = min(-(-4 * cache // num_bytes(first)), MOST_SETS)
    return [first, *(random_experts(problem, site.device, site.seed + i) for i in range(1, sets))]


def release(device: torch.device) -> None:
    """Give back the memory of backends that nobody holds any more: they are full of cycles."""
    gc.collect()
    give_back(device)


def give_back(device: torch.device) -> None:
    """Give back what is cached, which a graph could not use."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


class _CellBench:
    """One shape at one number of tokens: its inputs, made once and the same for everybody."""

    def __init__(self, shape: Shape, tokens: int, site: Site, ceilings: Ceilings, weights: Experts) -> None:
        self._shape, self._tokens, self._site, self._weights = shape, tokens, site, weights
        least = floor_of(shape.problem, tokens, ceilings).microseconds * 1e-6
        source = TokenSource(shape.problem, site.device, site.seed + tokens, site.routing)
        self._inputs = [source.draw(tokens) for _ in range(site.budget.calls(least))]
        experts = fmean(experts_of(one) for one in self._inputs)
        self.floor: Floor = floor_of(shape.problem, tokens, ceilings, experts=experts)

    def cell(self, rows: Sequence[Row]) -> Cell:
        return Cell(shape=self._shape.name, tokens=self._tokens, floor=self.floor, rows=tuple(rows))

    def rows(self, subjects: Sequence[Subject]) -> list[Row]:
        """Experts alone: ids and weights are given."""
        return measure_rows(subjects, self._inputs, self._judge, self._tokens, self._site)

    @cached_property
    def _judge(self) -> ExpertsJudge:
        return ExpertsJudge.of(self._shape.problem, self._weights, self._inputs[0])

    def from_logits(
        self, routing: Sequence[Subject], lineup: Lineup, rows: Sequence[Row], bias_E: torch.Tensor | None
    ) -> list[Row]:
        """Routing alone, then each router before the fastest candidate that is right, and one before the best peer."""
        if not routing:
            return []
        problem, first = self._shape.problem, self._inputs[0]
        judge = RoutingJudge(problem, first.logits_TE, bias_E)
        found = measure_rows(routing, self._inputs, judge, self._tokens, self._site)
        cell, subjects = self.cell([*rows, *found]), {subject.name: subject for subject in lineup.together}
        ours, peer = cell.best(Role.CANDIDATE), cell.best(Role.PEER)
        right = [router for router, row in zip(routing, found, strict=True) if row.is_right]
        layers = [behind(router, subjects[ours.name]) for router in right if ours is not None]
        layers += [behind(router, subjects[peer.name]) for router in right[:1] if peer is not None]
        routed = select_experts(RoutingConfig.of(problem), first.logits_TE, bias_E)
        # The twin reads all experts: not twice for the same routes.
        known = _same_routes(routed, first.context)
        whole = self._judge if known else ExpertsJudge.of(problem, self._weights, first, routed=routed)
        return [*found, *measure_rows(layers, self._inputs, whole, self._tokens, self._site)]


def _same_routes(routed: tuple[torch.Tensor, torch.Tensor], context: MoERunContext) -> bool:
    ids_TK, scales_TK = routed
    if not torch.equal(ids_TK, context.token_selected_slots):
        return False
    return relative_error(scales_TK, context.token_final_scales) <= FLOAT32_FLOOR
