"""Real weights for a trial: those of one layer of a checkpoint, with its router. Needs torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from moe_core.checkpoint import Checkpoint, RouterWeights, layers_with_experts, load_layer, load_router
from moe_core.cli.progress import progress
from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import QuantAlgo
from moe_core.execution import TORCH_DTYPE
from moe_core.quantization import dequantized
from moe_core.weights import INPUT_SCALES, ExpertWeights


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """Experts in memory, their router, and where they come from."""

    origin: str
    experts: ExpertWeights
    router: RouterWeights | None
    """``None``: the checkpoint's is not known to be linear."""


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A layer of a checkpoint."""

    checkpoint: Checkpoint
    layer: int
    problem: MoEProblem

    @classmethod
    def of(cls, folder: str, layer: int, problem: MoEProblem) -> StoredLayer | None:
        """The layer in `folder`; ``None`` when no layer there has experts."""
        checkpoint = Checkpoint.open(folder)
        return cls(checkpoint, layer, problem) if layers_with_experts(checkpoint) else None

    def load(self, asked: MoEProblem, device: str) -> StoredWeights:
        """The experts, dequantized where `asked` is not quantized.

        Raises :class:`moe_core.checkpoint.CheckpointError` when the checkpoint holds another problem than its own.
        """
        with progress(f"experts of layer {self.layer}") as tell:
            experts = load_layer(self.checkpoint, self.layer, self.problem, device=device, progress=tell)
        if asked.quant is QuantAlgo.NONE and asked.dtype_act is not None:
            dtype = TORCH_DTYPE[asked.dtype_act]
            plain: dict[str, Any] = {name: dequantized(matrix, dtype) for name, matrix in experts.given().items()}
            plain |= dict.fromkeys(INPUT_SCALES)
            experts = replace(experts, **plain)
        router = load_router(self.checkpoint, self.layer, self.problem, device=device)
        routed = "with its router" if router is not None else "with random router logits"
        return StoredWeights(f"layer {self.layer} of {self.checkpoint.name}, {routed}", experts, router)
