"""Experts from safetensors checkpoints: found by their keys, checked before they are read, read expert by expert."""

from moe_core.checkpoint.errors import CheckpointError
from moe_core.checkpoint.files import Checkpoint
from moe_core.checkpoint.load import Progress, load_layer
from moe_core.checkpoint.router import RouterWeights, load_router
from moe_core.checkpoint.schemes import WeightLoadingMode, layers_with_experts

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Progress",
    "RouterWeights",
    "WeightLoadingMode",
    "layers_with_experts",
    "load_layer",
    "load_router",
]
