"""What a selection costs: ``python -m moe_core.testing.selection_speed`` prints figures; it is no timed test.

Times are of one core. ``cold`` is the CPU time of a whole ``moe explain`` process beyond that of ``python -c pass``,
with modules compiled to bytecode, as an installed package has them.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from moe_core.contract.catalog import Catalog
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.problem import MoEProblem
from moe_core.environment import preset
from moe_core.ingest import ingest
from moe_core.registry import load_catalog
from moe_core.resolve import resolve_model, resolve_moe_impl
from moe_core.resolve.resolver import clear_cache

DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "hidden_size": 7168,
    "moe_intermediate_size": 2048,
    "intermediate_size": 18432,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_attention_heads": 128,
    "n_group": 8,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    },
}
"""The keys of DeepSeek-V3's config.json that say something of its experts."""


def main() -> None:
    """Print the figures."""
    catalog = load_catalog()
    deployment = MoEDeployment(environment=preset("h200"), ep_size=8, dp_size=8, max_num_tokens=4096)
    model = ingest(DEEPSEEK_V3)
    problem = model.groups[0].problem
    figures = {
        "uncached resolution [ms]": uncached(problem, deployment, catalog) * 1e3,
        "cached resolution [us]": cached(problem, deployment, catalog) * 1e6,
        "whole-model report, DeepSeek-V3, uncached [ms]": _median(
            lambda: resolve_model(model.groups, deployment, candidates=catalog), 50, before=clear_cache
        )
        * 1e3,
        "moe explain, cold, CPU beyond python -c pass [s]": cold(),
    }
    sys.stdout.write(
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, {len(catalog)} candidates\n"
    )
    for name, value in figures.items():
        sys.stdout.write(f"{name:52} {value:.3g}\n")


def uncached(problem: MoEProblem, deployment: MoEDeployment, catalog: Catalog) -> float:
    """Median seconds of a resolution that was never asked before."""
    sizes = iter(range(128, 128 * 400, 128))
    return _median(
        lambda: resolve_moe_impl(problem.evolve(hidden_size=next(sizes)), deployment, candidates=catalog), 200
    )


def cached(problem: MoEProblem, deployment: MoEDeployment, catalog: Catalog) -> float:
    """Mean seconds of asking again."""
    number = 20_000
    start = time.perf_counter()
    for _ in range(number):
        resolve_moe_impl(problem, deployment, candidates=catalog)
    return (time.perf_counter() - start) / number


def cold(repeat: int = 7) -> float:
    """Median CPU seconds of a ``moe explain`` process beyond an empty Python."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(DEEPSEEK_V3))
        explain = ["-m", "moe_core", "explain", str(config), "--hardware", "h200", "--ep", "8", "--dp", "8"]
        spent = [_cpu(explain) - _cpu(["-c", "pass"]) for _ in range(repeat + 1)]
    return statistics.median(spent[1:])


def _cpu(arguments: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=False, env=environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _median(call: Callable[[], object], repeat: int, before: Callable[[], None] = lambda: None) -> float:
    times = []
    for _ in range(repeat):
        before()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    main()
