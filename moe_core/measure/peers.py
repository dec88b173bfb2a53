"""What people use today, timed beside our candidates: rows of data, each with the function that it calls.

A peer's packages are optional. A peer whose package is absent or too old, or that does not fit into memory, is in the
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
from moe_core.contract.vocabulary import QuantAlgo
from moe_core.explain.phrases import size
from moe_core.fused_weights import FusedExpertWeights
from moe_core.measure.experts import Experts
from moe_core.measure.inputs import Tokens
from moe_core.quantization import QuantizedTensor
from moe_core.quantization.formats import FP8_BLOCKS
from moe_core.testing.numerics import tolerance_in
from moe_core.weights import ExpertWeights

PEER_TOLERANCE = 1e-2
"""Relative error of a peer that passes in bfloat16; peers declare none, and round router weights to that type."""
FP8_TOLERANCE = 6e-2
"""The same where activations are rounded to e4m3."""

CHAINS: Final = frozenset({"moe_core.torch.grouped_mm.none"})
"""Candidates that are a plain chain of torch's own kernels: peers of the others."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A function of another package over a module's fused expert weights."""

    name: str
    packages: tuple[tuple[str, str], ...]
    """With the least version of each."""
    function: str
    """``package.module:name``, called with a module, rows, ids and weights."""
    quant: QuantAlgo = QuantAlgo.NONE
    """Format of the weights that it computes."""
    gathers_weights: bool = False
    """It copies the matrices of every chosen expert, for every token again."""

    def why_not(self, environment: MoEEnvironment) -> str | None:
        """Why it cannot be called in `environment`."""
        for package, at_least in self.packages:
            found = environment.package_version(package)
            if found is None:
                return f"{package} is not installed; try: pip install {package}"
            if Version(found) < Version(at_least):
                return f"found {package} {found}, needed {at_least}"
        return None

    def tolerance(self, dtype: torch.dtype) -> float:
        """Relative error that passes with activations of `dtype`."""
        return FP8_TOLERANCE if self.quant is QuantAlgo.FP8_BLOCK_SCALES else tolerance_in(dtype, PEER_TOLERANCE)

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

    def bind(self, module: SimpleNamespace) -> Callable[[Tokens], torch.Tensor]:
        """The function over what :func:`peer_module` made."""
        place, _, name = self.function.partition(":")
        function = getattr(import_module(place), name)

        def call(tokens: Tokens) -> torch.Tensor:
            output: torch.Tensor = function(module, tokens.context.x, tokens.ids_TK, tokens.scales_TK)
            return output

        return call


GROUPED_MM = Peer(
    name="transformers.grouped_mm",
    packages=(("transformers", "5.7"),),
    function="transformers.integrations.moe:grouped_mm_experts_forward",
)
PEERS = (
    GROUPED_MM,
    Peer(
        name="transformers.batched_mm",
        packages=(("transformers", "5.7"),),
        function="transformers.integrations.moe:batched_mm_experts_forward",
        gathers_weights=True,
    ),
    Peer(
        name="transformers.fp8_grouped_mm",
        packages=(("transformers", "5.17"), ("kernels", "0.10")),
        function="transformers.integrations.finegrained_fp8:fp8_grouped_mm_experts_forward",
        quant=QuantAlgo.FP8_BLOCK_SCALES,
    ),
    Peer(
        name="transformers.fp8_batched_mm",
        packages=(("transformers", "5.17"), ("kernels", "0.10")),
        function="transformers.integrations.finegrained_fp8:fp8_batched_mm_experts_forward",
        quant=QuantAlgo.FP8_BLOCK_SCALES,
    ),
)
"""Those for FP8 run kernels that transformers fetches by the package ``kernels``."""


def peer_module(problem: MoEProblem, experts: Experts) -> SimpleNamespace:
    """What transformers' functions read of an experts module (as of 5.24); only quantized `experts` are copied.

    Raises ``ValueError`` for what its modules cannot hold.
    """
    activation = Activation.of(problem)
    fused, parts = _fused(experts) if isinstance(experts, FusedExpertWeights) else _fp8(experts)
    return SimpleNamespace(
        **parts,
        num_experts=len(fused.w2_EHI),
        has_gate=fused.gated,
        has_bias=fused.fc1_bias_EG is not None,
        has_post_expert_norm=False,
        is_transposed=False,
        is_concatenated=True,
        _is_expert_parallel=False,
        _apply_gate=lambda fc1_RG: activation(*fused.halves(fc1_RG)),
        act_fn=lambda up_RI: activation(up_RI, None),
    )


def _fused(weights: FusedExpertWeights) -> tuple[FusedExpertWeights, dict[str, Any]]:
    first = "gate_up_proj" if weights.gated else "up_proj"
    return weights, {
        first: weights.fc1_EGH,
        f"{first}_bias": weights.fc1_bias_EG,
        "down_proj": weights.w2_EHI,
        "down_proj_bias": weights.b2_EH,
    }


def _fp8(weights: ExpertWeights) -> tuple[FusedExpertWeights, dict[str, Any]]:
    """Codes with gate above up, and scales likewise."""
    fc1 = [_blocks(part) for part in (weights.w1_EIH, weights.w3_EIH) if part is not None]
    w2, first = _blocks(weights.w2_EHI), "gate_up_proj" if len(fc1) == 2 else "up_proj"
    rows = FP8_BLOCKS.block[0] or 1
    if weights.b2_EH is not None:
        raise ValueError("found biases, and transformers' experts in FP8 have none")
    if len(fc1) == 2 and weights.w1_EIH.shape[1] % rows:
        raise ValueError(f"found intermediate_size {weights.w1_EIH.shape[1]}, needed a multiple of {rows}")
    # As bytes: not every version of torch joins float8.
    codes = torch.cat([part.data.view(torch.uint8) for part in fc1], dim=1).view(torch.float8_e4m3fn)
    parts = {
        first: codes,
        f"{first}_scale_inv": torch.cat([part.scale for part in fc1], dim=1),
        "down_proj": w2.data,
        "down_proj_scale_inv": w2.scale,
        "block_size": list(FP8_BLOCKS.block),
        "activation_scheme": "dynamic",
    }
    return FusedExpertWeights(codes, w2.data, gated=len(fc1) == 2), parts


def _blocks(matrix: object) -> QuantizedTensor:
    if not isinstance(matrix, QuantizedTensor) or matrix.format != FP8_BLOCKS:
        raise ValueError(f"found {getattr(matrix, 'format', 'plain matrices')}, needed {FP8_BLOCKS}")
    return matrix
