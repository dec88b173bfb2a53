"""Small problems that between them ask for everything a backend may declare."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from moe_core.contract.problem import ActivationConstant, MoEProblem
from moe_core.contract.vocabulary import ActivationType, DType, QuantAlgo, RoutingMethodType


def small_problem(**changes: Any) -> MoEProblem:
    """Unquantized SwiGLU with eight experts, three per token, fully specified; `changes` are fields of MoEProblem."""
    defaults: dict[str, Any] = {
        "quant": QuantAlgo.NONE,
        "dtype_act": DType.BFLOAT16,
        "hidden_size": 64,
        "intermediate_size": 32,
        "num_experts": 8,
        "top_k": 3,
        "bias": False,
        "routing": RoutingMethodType.RENORMALIZE,
        "routing_bias": False,
    }
    return MoEProblem(**defaults | changes)


def _constants(**values: float) -> tuple[ActivationConstant, ...]:
    return tuple(ActivationConstant.model_validate({"name": n, "value": v}) for n, v in values.items())


ACTIVATIONS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "swiglu": {},
        "swiglu_clamp": {"activation_constants": _constants(clamp=0.5)},
        "swiglu_clamp_after_silu": {"activation_constants": _constants(clamp=0.5), "clamp_after_silu": True},
        "swiglu_bias": {
            "activation": ActivationType.SWIGLU_BIAS,
            "activation_constants": _constants(alpha=1.702, beta=1.0, clamp=7.0),
            "bias": True,
        },
        "situ": {"activation": ActivationType.SITU, "activation_constants": _constants(alpha=4.0, beta=3.0)},
        "geglu": {"activation": ActivationType.GEGLU},
        "geglu_tanh": {"activation": ActivationType.GEGLU_TANH},
        "relu2": {"activation": ActivationType.RELU2},
        "relu2_with_bias": {"activation": ActivationType.RELU2, "bias": True},
        "gelu": {"activation": ActivationType.GELU},
        "relu": {"activation": ActivationType.RELU},
        "silu": {"activation": ActivationType.SILU},
        "identity": {"activation": ActivationType.IDENTITY},
    }
)
"""Fields of MoEProblem for every activation, by name."""
