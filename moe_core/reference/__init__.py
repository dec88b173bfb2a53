"""The float32 twin of the whole routed layer: the definition of correct for every backend."""

from moe_core.reference.experts import reference_moe
from moe_core.weights import ExpertWeights

__all__ = ["ExpertWeights", "reference_moe"]
