"""What people use today, timed beside our candidates: rows of data, each with the function that it calls.

A peer's package is optional. A peer whose package is absent or too old, or that does not fit into memory, is in the
result with that reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Final

import torch
from packaging.version import Version

from moe_core.activation import Activation
from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.problem import MoEProblem
from moe_core.explain.phrases import size
from moe_core.fused_weights import FusedExpertWeights
from moe_core.measure.inputs import Tokens

PEER_TOLERANCE = 1e-2
"""Relative error of a peer that passes in bfloat16; peers declare none, and round router weights to that type."""

CHAINS: Final = frozenset({"moe_core.torch.grouped_mm.none"})
"""Candidates that are a plain chain of torch's own kernels: peers of the others."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A function of another package over a module's fused expert weights."""

    name: str
    package: str
    at_least: str
    function: str
    """``package.module:name``, called with a module, rows, ids and weights."""
    gathers_weights: bool = False
    """It copies the matrices of every chosen expert, for every token again."""

    def why_not(self, environment: MoEEnvironment) -> str | None:
        """Why it cannot be called in `environment`."""
        found = environment.package_version(self.package)
        if found is None:
            return f"{self.package} is not installed; try: pip install {self.package}"
        if Version(found) < Version(self.at_least):
            return f"found {self.package} {found}, needed {self.at_least}"
        return None

    def too_large(self, problem: MoEProblem, num_tokens: int, free: int) -> str | None:
        """Why `num_tokens` do not fit into half of the `free` bytes; the other half is left to the others."""
        if not self.gathers_weights:
            return None
        pairs, elements = (
            num_tokens * (problem.top_k or 1),
            (problem.hidden_size or 1) * (problem.intermediate_size or 1),
        )
        matrices = 3 if problem.is_gated else 2
        needed = pairs * matrices * elements * (problem.dtype_act.num_bytes if problem.dtype_act else 2)
        if needed <= free // 2:
            return None
        return (
            f"it gathers {matrices} matrices for each of {pairs} pairs of token and expert: {size(needed)}, "
            f"and half of what is free is {size(free // 2)}"
        )

    def bind(self, problem: MoEProblem, weights: FusedExpertWeights) -> Callable[[Tokens], torch.Tensor]:
        """The function over `weights`, which are not copied."""
        module, _, name = self.function.partition(":")
        function, experts = getattr(import_module(module), name), _module(problem, weights)

        def call(tokens: Tokens) -> torch.Tensor:
            output: torch.Tensor = function(experts, tokens.context.x, tokens.ids_TK, tokens.scales_TK)
            return output

        return call


PEERS = (
    Peer(
        name="transformers.grouped_mm",
        package="transformers",
        at_least="5.7",
        function="transformers.integrations.moe:grouped_mm_experts_forward",
    ),
    Peer(
        name="transformers.batched_mm",
        package="transformers",
        at_least="5.7",
        function="transformers.integrations.moe:batched_mm_experts_forward",
        gathers_weights=True,
    ),
)


def _module(problem: MoEProblem, weights: FusedExpertWeights) -> SimpleNamespace:
    """What transformers' functions read of an experts module (as of 5.24)."""
    activation = Activation.of(problem)
    first = "gate_up_proj" if weights.gated else "up_proj"
    parts: dict[str, Any] = {
        first: weights.fc1_EGH,
        f"{first}_bias": weights.fc1_bias_EG,
        "down_proj": weights.w2_EHI,
        "down_proj_bias": weights.b2_EH,
    }
    return SimpleNamespace(
        **parts,
        num_experts=len(weights.fc1_EGH),
        has_gate=weights.gated,
        has_bias=weights.fc1_bias_EG is not None,
        has_post_expert_norm=False,
        is_transposed=False,
        is_concatenated=True,
        _is_expert_parallel=False,
        _apply_gate=lambda fc1_RG: activation(*weights.halves(fc1_RG)),
        act_fn=lambda up_RI: activation(up_RI, None),
    )
