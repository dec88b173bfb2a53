"""The router of a layer, as far as trying the layer's experts needs it: from hidden states to logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch.nn.functional import linear

from moe_core.checkpoint.files import Checkpoint
from moe_core.checkpoint.schemes import find
from moe_core.checkpoint.storages import ROUTER_IN_EXPERTS
from moe_core.contract.problem import MoEProblem

_ROUTERS: Final = ("gate", "router", "moe.gate", "gate.wg", "router.layer", "router.gate")
_CORRECTIONS: Final = (
    "gate.e_score_correction_bias", "e_score_correction_bias", "moe_statics.e_score_correction_bias",
    *ROUTER_IN_EXPERTS, "gate.expert_bias", "router.expert_bias", "expert_bias", "router_bias", "moe.router_bias",
    "gate.bias",
)  # fmt: skip


@dataclass(frozen=True)
class RouterWeights:
    """A linear router. E experts; M is the width of its input, which a latent MoE has apart from the experts'."""

    weight_EM: torch.Tensor
    bias_E: torch.Tensor | None = None
    """Added to the logits."""
    correction_bias_E: torch.Tensor | None = None
    """float32; takes part in the choice of experts only."""

    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """float32 ``[T, E]`` of hidden states ``[T, M]``."""
        bias = None if self.bias_E is None else self.bias_E.float()
        return linear(hidden_states.float(), self.weight_EM.float(), bias)


def load_router(
    checkpoint: Checkpoint, layer: int, problem: MoEProblem, *, device: torch.device | str = "cpu"
) -> RouterWeights | None:
    """The router beside the experts of `layer`; ``None`` when it is not known to be linear.

    It is when it is a matrix ``[E, M]`` under a usual name, with a correction bias exactly if the problem has one, and
    nothing else beside it.

    Raises :class:`CheckpointError` when the layer has no experts.
    """
    found = find(checkpoint, layer, gated=bool(problem.is_gated))
    keys = {p.removeprefix(found.block): found.prefix + p for p in found.paths if p.startswith(found.block)}
    name = next((name for name in _ROUTERS if f"{name}.weight" in keys), None)
    correction = next((c for c in _CORRECTIONS if c in keys), None) if problem.routing_bias else None
    if name is None or bool(problem.routing_bias) != (correction is not None):
        return None
    bias = f"{name}.bias" if f"{name}.bias" in keys and f"{name}.bias" != correction else None
    used = {"weight_EM": f"{name}.weight", "bias_E": bias, "correction_bias_E": correction}
    if any(path.startswith((f"{name}.", "gate.", "router.")) for path in keys.keys() - set(used.values())):
        return None
    with checkpoint.reading() as files:
        read = {field: files.read(keys[path]).to(device) for field, path in used.items() if path is not None}
    if read["weight_EM"].ndim != 2 or len(read["weight_EM"]) != problem.num_experts:
        return None
    if "correction_bias_E" in read:
        read["correction_bias_E"] = read["correction_bias_E"].float().flatten()
    return RouterWeights(**read)
