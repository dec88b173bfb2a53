"""One layer: built, run, timed, and compared with its float32 twin. Needs torch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from moe_core.checkpoint import RouterWeights
from moe_core.cli.progress import progress
from moe_core.cli.stored import StoredWeights
from moe_core.contract.catalog import Catalog
from moe_core.contract.problem import MoEProblem
from moe_core.contract.report import MoEResolutionReport
from moe_core.contract.vocabulary import DType
from moe_core.execution import TORCH_DTYPE
from moe_core.layer import ConfigurableMoE
from moe_core.reference import reference_moe
from moe_core.routing import RoutingConfig, select_experts
from moe_core.testing.numerics import relative_error, tolerance_of
from moe_core.testing.weights import random_weights
from moe_core.weights import ExpertWeights

WARM_UPS = 3
VOCABULARY = 1024
"""Token ids of a hashed router's random table."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of a run."""

    error: float
    """Relative Frobenius error against the float32 twin."""
    tolerance: float | None
    """What the candidate declares, in the activation's element type; ``None``: it declares none."""
    microseconds: float
    """Median time of a forward."""
    weights: str
    """Where they come from."""

    @property
    def passed(self) -> bool:
        """Whether the error is within the declared tolerance."""
        return self.tolerance is not None and self.error <= self.tolerance


@dataclass(frozen=True, slots=True)
class _Inputs:
    hidden_states: torch.Tensor
    router_logits: torch.Tensor
    input_ids: torch.Tensor | None
    router_bias: torch.Tensor | None
    routing_table: torch.Tensor | None


@torch.inference_mode()
def measure(
    report: MoEResolutionReport,
    catalog: Catalog,
    *,
    device: str,
    num_tokens: int,
    repeat: int,
    seed: int = 0,
    stored: StoredWeights | None = None,
) -> Measured:
    """Build the layer that `report` selected on one rank, run it on random tokens, and compare it with the twin.

    Its experts are random where none are `stored`, and so are router logits.

    Raises :class:`moe_core.execution.BindError` when the layer cannot be built here.
    """
    problem = report.problem
    inputs = _inputs(problem, device, num_tokens, seed, None if stored is None else stored.router)
    weights = _weights(problem, device, seed) if stored is None else stored.experts
    with ConfigurableMoE.from_report(
        report, weights, catalog=catalog, device=device,
        router_bias=inputs.router_bias, routing_table=inputs.routing_table,
    ) as layer:  # fmt: skip

        def forward() -> torch.Tensor:
            output: torch.Tensor = layer(inputs.hidden_states, inputs.router_logits, inputs.input_ids)
            return output

        actual = forward()
        microseconds = _median(forward, device, repeat)
    ids_TK, weights_TK = select_experts(
        RoutingConfig.of(problem), inputs.router_logits, inputs.router_bias, inputs.input_ids, inputs.routing_table
    )
    expected = reference_moe(problem, inputs.hidden_states, weights, ids_TK, weights_TK)
    return Measured(
        error=relative_error(actual, expected),
        tolerance=tolerance_of(catalog.get(report.winner().identity), actual.dtype),
        microseconds=microseconds,
        weights="random" if stored is None else stored.origin,
    )


def _inputs(problem: MoEProblem, device: str, num_tokens: int, seed: int, router: RouterWeights | None) -> _Inputs:
    generator = torch.Generator().manual_seed(seed)
    experts, top_k = problem.num_experts or 1, problem.top_k or 1

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device)

    ids = table = None
    if problem.hashed_routing:
        ids = torch.randint(VOCABULARY, (num_tokens,), generator=generator).to(device)
        table = torch.rand(VOCABULARY, experts, generator=generator).argsort(dim=-1)[:, :top_k].to(device)
    hidden_states = normal(num_tokens, problem.hidden_size or 1).to(_dtype(problem))
    if router is None:
        logits = normal(num_tokens, experts)
        bias = normal(experts) * 0.1 if problem.routing_bias else None
    else:
        # The router of a latent MoE looks at states of another width than the experts do.
        width = router.weight_EM.shape[1]
        logits = router.logits(hidden_states if hidden_states.shape[1] == width else normal(num_tokens, width))
        bias = router.correction_bias_E
    return _Inputs(hidden_states, logits, ids, bias, table)


def _dtype(problem: MoEProblem) -> torch.dtype:
    return TORCH_DTYPE[problem.dtype_act or DType.BFLOAT16]


def _weights(problem: MoEProblem, device: str, seed: int) -> ExpertWeights:
    """Random experts, made one by one: a full-size layer in float32 would not fit beside its own copy."""
    single = problem.evolve(num_experts=1, top_k=1, num_expert_groups=None, topk_group=None)
    experts = problem.num_experts or 1

    def one(expert: int) -> ExpertWeights:
        return random_weights(single, seed=seed + expert, device=device, dtype=_dtype(problem))

    first = one(0)
    every = first.map(lambda tensor: tensor.new_empty(experts, *tensor.shape[1:]))
    with progress("random experts") as tell:
        for expert in range(experts):
            made = (first if expert == 0 else one(expert)).tensors()
            for name, tensor in every.tensors().items():
                tensor[expert] = made[name][0]
            tell(expert + 1, experts)
    return every


def _median(forward: Callable[[], torch.Tensor], device: str, repeat: int) -> float:
    """Median microseconds of `repeat` calls after warming up."""
    for _ in range(WARM_UPS):
        forward()
    seconds = []
    for _ in range(repeat):
        _synchronize(device)
        start = time.perf_counter()
        forward()
        _synchronize(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1e6


def _synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
