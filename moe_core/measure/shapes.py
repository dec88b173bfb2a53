"""Layers that are named by their sizes alone, for measuring without a config. Needs no torch."""

from __future__ import annotations

from types import MappingProxyType

from moe_core.contract.base import Frozen
from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import ActivationType, DType, QuantAlgo, RoutingMethodType

SHAPES = MappingProxyType(
    {
        "mixtral-8x7b": (8, 2, 4096, 14336),
        "qwen3-30b-a3b": (128, 8, 2048, 768),
        "qwen3-235b": (128, 8, 4096, 1536),
        "gpt-oss-120b": (128, 4, 2880, 2880),
        "deepseek-v3": (256, 8, 7168, 2048),
        "llama4-scout": (16, 1, 5120, 8192),
        "qwen3-next": (512, 10, 2048, 512),
    }
)
"""Experts, experts per token, hidden size and intermediate size of published models: their sizes, all with plain
SwiGLU, no bias and softmax routing, whatever the model itself computes."""

TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384)
"""Tokens per rank that are measured when nobody says which."""


class Shape(Frozen):
    """A problem to measure, and what it is called."""

    name: str
    problem: MoEProblem


def parse_shape(text: str) -> Shape:
    """``qwen3-30b-a3b``, or ``E,K,H,I[,dtype[,activation]]`` such as ``8,2,4096,14336,float16,Geglu``.

    Raises ``ValueError`` when it is neither.
    """
    if text in SHAPES:
        return Shape(name=text, problem=_problem(SHAPES[text], DType.BFLOAT16, ActivationType.SWIGLU))
    sizes, words = _split(text)
    if len(sizes) != 4 or len(words) > 2:
        raise ValueError(
            f"found the shape {text!r}, needed E,K,H,I[,dtype[,activation]] such as 8,2,4096,14336, "
            f"or one of {', '.join(SHAPES)}"
        )
    dtype = DType(words[0]) if words else DType.BFLOAT16
    activation = ActivationType(words[1]) if len(words) > 1 else ActivationType.SWIGLU
    return Shape(name=text.replace(",", "-"), problem=_problem(tuple(sizes), dtype, activation))


def _split(text: str) -> tuple[list[int], list[str]]:
    parts = [part.strip() for part in text.split(",")]
    num_sizes = next((i for i, part in enumerate(parts) if not part.isdecimal()), len(parts))
    return [int(part) for part in parts[:num_sizes]], parts[num_sizes:]


def _problem(sizes: tuple[int, ...], dtype: DType, activation: ActivationType) -> MoEProblem:
    num_experts, top_k, hidden_size, intermediate_size = sizes
    return MoEProblem(
        quant=QuantAlgo.NONE,
        dtype_act=dtype,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_experts=num_experts,
        top_k=top_k,
        activation=activation,
        bias=False,
        routing=RoutingMethodType.RENORMALIZE,
        routing_bias=False,
    )
