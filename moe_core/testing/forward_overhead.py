"""What a forward costs around its kernels: ``python -m moe_core.testing.forward_overhead`` prints figures.

A single rank on the CPU, with experts that return their input at once: what is left beside routing's own operations
is plan, scheduler, hooks and exchange. With ``--device cuda``, the host's time of a whole layer with each candidate's
real kernels, launches included, at one token. It is no timed test.
"""

from __future__ import annotations

import argparse
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
from moe_core.contract.report import MoEResolutionReport
from moe_core.contract.request import MoERequest
from moe_core.contract.vocabulary import ActivationType, CandidateKind, CudaGraphMode
from moe_core.environment import current, preset
from moe_core.execution import BindError, Binding, MoERunContext
from moe_core.layer import ConfigurableMoE
from moe_core.registry import load_catalog, load_registry
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


ON_GPU = PROBLEM.evolve(hidden_size=2048, intermediate_size=768, num_experts=128, top_k=8, routing_bias=False)
"""Sizes of a real layer, Qwen3-30B-A3B's: a host that is slower than its device is measured on any of them."""


def main(arguments: list[str] | None = None) -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m moe_core.testing.forward_overhead")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    if parser.parse_args(arguments).device == "cuda":
        on_gpu()
    else:
        on_cpu()


def on_cpu() -> None:
    """Around experts that do nothing."""
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


def on_gpu() -> None:
    """For each candidate that may run in a CUDA graph: the layer, its experts and its routing, called from the host."""
    registry = load_registry()
    deployment = MoEDeployment(environment=current(registry), max_num_tokens=8, cuda_graph=CudaGraphMode.FULL)
    auto = resolve_moe_impl(ON_GPU, deployment, candidates=registry.catalog)
    weights = random_weights(ON_GPU.evolve(num_experts=8)).to("cuda").map(lambda t: t.repeat(16, *[1] * (t.dim() - 1)))
    x = torch.randn(NUM_TOKENS, 2048, device="cuda", dtype=torch.bfloat16)
    logits = torch.randn(NUM_TOKENS, 128, device="cuda")
    sys.stdout.write(
        f"{torch.cuda.get_device_name()}, Python {platform.python_version()}, torch {torch.__version__}\n"
        f"{'host microseconds at one token':44}{'layer':>8}{'experts':>9}{'routing':>9}\n"
    )
    runnable = [row.identity for row in auto.backend.eligible if registry.catalog.get(row.identity).factory]
    for identity in runnable:
        report = resolve_moe_impl(ON_GPU, deployment, candidates=registry.catalog, request=MoERequest(backend=identity))
        try:
            sys.stdout.write(f"{identity:44}{_layer_times(report, registry.catalog, weights, x, logits)}\n")
        except BindError as error:
            sys.stdout.write(f"{identity:44}{error}\n")


@torch.inference_mode()
def _layer_times(
    report: MoEResolutionReport, catalog: Catalog, weights: ExpertWeights, x: torch.Tensor, logits: torch.Tensor
) -> str:
    with ConfigurableMoE.from_report(report, weights, catalog=catalog) as layer:
        ids, scales = layer.router(logits)
        context = MoERunContext(x, ids, scales)
        forward = _queued(lambda: layer(x, logits))
        experts = _queued(lambda: layer.backend.run_moe(context))
        routing = _queued(lambda: layer.router(logits))
    return f"{forward:8.1f}{experts:9.1f}{routing:9.1f}"


def _queued(call: Callable[[], object], repeat: int = 15, number: int = 30) -> float:
    """Median over `repeat` of the host's mean time of `number` calls: fewer launches than the device's queue holds."""
    for _ in range(3):
        call()
    times = []
    for _ in range(repeat):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(number):
            call()
        times.append((time.perf_counter() - start) / number)
    torch.cuda.synchronize()
    return statistics.median(times) * 1e6


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
