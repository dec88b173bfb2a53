"""What a forward costs around its kernels: ``python -m moe_core.testing.forward_overhead`` prints figures.

A single rank on the CPU, with experts that return their input at once: what is left beside routing's own operations
is plan, scheduler, hooks and exchange. It is no timed test.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable

import torch

from moe_core.contract.candidate import MoEActivationSupport, MoECandidate
from moe_core.contract.catalog import Catalog, CatalogEntry
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import ActivationType, CandidateKind
from moe_core.environment import preset
from moe_core.execution import Binding, MoERunContext
from moe_core.layer import ConfigurableMoE
from moe_core.registry import load_catalog
from moe_core.resolve import plan_forward, resolve_moe_impl
from moe_core.testing.weights import random_weights
from moe_core.weights import ExpertWeights

PROBLEM = MoEProblem(
    quant="NONE", hidden_size=64, intermediate_size=32, num_experts=8, top_k=2, routing="Renormalize", bias=False
)
NUM_TOKENS = 1


class IdleExperts:
    """Experts that return their input."""

    def __init__(self, binding: Binding) -> None:
        self._binding = binding

    def prepare(self, weights: ExpertWeights) -> None:
        """Nothing to prepare."""

    def quantize_input(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        """`x` as it is."""
        return x, None

    def run_moe(self, context: MoERunContext) -> torch.Tensor:
        """`x` as it is."""
        return context.x


IDLE = MoECandidate(
    identity="moe_core.idle.no_kernel.any",
    kind=CandidateKind.BACKEND,
    family="IDLE",
    title="returns its input",
    priority=10_000,
    factory="moe_core.testing.forward_overhead:IdleExperts",
    activation=MoEActivationSupport(kinds=(ActivationType.SWIGLU,)),
)


def main() -> None:
    """Print the figures."""
    catalog = Catalog([*load_catalog().entries, CatalogEntry(IDLE)])
    report = resolve_moe_impl(PROBLEM, MoEDeployment(environment=preset("cpu"), max_num_tokens=8), candidates=catalog)
    x, logits = torch.randn(NUM_TOKENS, 64, dtype=torch.bfloat16), torch.randn(NUM_TOKENS, 8)
    weights = random_weights(PROBLEM)
    with torch.inference_mode(), ConfigurableMoE.from_report(report, weights, catalog=catalog) as layer:
        forward = _microseconds(lambda: layer(x, logits))
        routing = _microseconds(lambda: layer.router(logits))
        plan = _microseconds(lambda: plan_forward(report, (NUM_TOKENS,)))
    sys.stdout.write(
        f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}\n"
        f"forward with idle experts {forward:8.1f} us\n"
        f"  routing's operations    {routing:8.1f} us\n"
        f"  plan                    {plan:8.1f} us\n"
        f"around the kernels        {forward - routing:8.1f} us\n"
    )


def _microseconds(call: Callable[[], object], repeat: int = 15, number: int = 500) -> float:
    """Median over `repeat` of the mean time of `number` calls."""
    call()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        for _ in range(number):
            call()
        times.append((time.perf_counter() - start) / number)
    return statistics.median(times) * 1e6


if __name__ == "__main__":
    main()
