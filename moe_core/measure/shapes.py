"""Layers that are named by their sizes alone, for measuring without a config. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeVar

from moe_core.contract.base import Frozen
from moe_core.contract.memory import DEFAULT_GROUP_SIZE
from moe_core.contract.problem import ActivationConstant, MoEProblem
from moe_core.contract.vocabulary import ActivationType, DType, QuantAlgo, RoutingMethodType

Word = TypeVar("Word", bound=StrEnum)

SHAPES = MappingProxyType(
    {
        "mixtral-8x7b": (8, 2, 4096, 14336),
        "qwen3-30b-a3b": (128, 8, 2048, 768),
        "qwen3-235b": (128, 8, 4096, 1536),
        "gpt-oss-120b": (128, 4, 2880, 2880),
        "deepseek-v3": (256, 8, 7168, 2048),
        "llama4-scout": (16, 1, 5120, 8192),
        "qwen3-next": (512, 10, 2048, 512),
        "kimi-k2": (384, 8, 7168, 2048),
    }
)
"""Experts, experts per token, hidden size and intermediate size of published models: their sizes, all with plain
SwiGLU, no bias and softmax routing, whatever the model itself computes; but see :data:`OWN_FORM`."""

FORMATS = MappingProxyType(
    {
        "fp8_block": (QuantAlgo.FP8_BLOCK_SCALES, None),
        "fp8": (QuantAlgo.FP8, None),
        "fp8_channel": (QuantAlgo.FP8_PER_CHANNEL_PER_TOKEN, None),
        "mxfp4": (QuantAlgo.W4A16_MXFP4, None),
        "mxfp4_fp8": (QuantAlgo.W4A8_MXFP4_FP8, None),
        "nvfp4": (QuantAlgo.NVFP4, None),
        "int4_g32": (QuantAlgo.W4A16_GPTQ, 32),
        "int4_g128": (QuantAlgo.W4A16_GPTQ, 128),
        "awq": (QuantAlgo.W4A16_AWQ, None),
        "int4": (QuantAlgo.W4A16, None),
        "int8": (QuantAlgo.W8A16, None),
    }
)
"""Formats of weights by short name, and the size of groups where it is not the customary one."""

OWN_FORM = MappingProxyType(
    {
        "gpt-oss-120b": {
            "activation": ActivationType.SWIGLU_BIAS,
            "activation_constants": (
                ActivationConstant(name="alpha", value=1.702),
                ActivationConstant(name="beta", value=1.0),
                ActivationConstant(name="clamp", value=7.0),
            ),
            "bias": True,
        }
    }
)
"""What a model computes itself, where kernels for its format have to: used with every format but none."""

SETS = MappingProxyType(
    {
        "all": tuple(name for name in SHAPES if name != "kimi-k2"),
        "quantized": (
            "qwen3-30b-a3b,fp8_block", "qwen3-30b-a3b,fp8", "deepseek-v3,fp8_block", "deepseek-v3,fp8",
            "llama4-scout,fp8_block", "llama4-scout,fp8", "gpt-oss-120b,mxfp4", "gpt-oss-120b,mxfp4_fp8",
            "gpt-oss-120b,nvfp4", "kimi-k2,int4_g32",
        ),
    }
)  # fmt: skip
"""Several shapes by one name."""

TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384)
"""Tokens per rank that are measured when nobody says which."""


class Shape(Frozen):
    """A problem to measure, and what it is called."""

    name: str
    problem: MoEProblem
    model: str | None = None
    """Whose sizes these are, in whatever format; ``None``: nobody's in particular."""


def parse_shapes(text: str) -> Iterator[Shape]:
    """The shapes of a set's name, or the one of :func:`parse_shape`."""
    return map(parse_shape, SETS.get(text, (text,)))


def parse_shape(text: str) -> Shape:
    """``deepseek-v3[,FORMAT]``, or ``E,K,H,I[,dtype[,activation]][,FORMAT]`` such as ``8,2,4096,14336,float16,Geglu``.

    Raises ``ValueError`` when it is neither.
    """
    *_, last = parts = [part.strip() for part in text.split(",")]
    quant, group_size = QuantAlgo.NONE, None
    if last in FORMATS:
        quant, group_size = FORMATS[parts.pop()]
    form: dict[str, Any] = {"quant": quant, "quant_group_size": group_size or DEFAULT_GROUP_SIZE.get(quant)}
    name = text.replace(" ", "").replace(",", "-")
    if len(parts) == 1 and parts[0] in SHAPES:
        (model,) = parts
        if quant is not QuantAlgo.NONE:
            form |= OWN_FORM.get(model, {})
        return Shape(name=name, problem=_problem(SHAPES[model], **form), model=model)
    sizes, words = _split(parts)
    if len(sizes) != 4 or len(words) > 2:
        raise ValueError(
            f"found the shape {text!r}, needed E,K,H,I[,dtype[,activation]][,format] such as 8,2,4096,14336,mxfp4, "
            f"or one of {', '.join(SHAPES)} and perhaps a format of {', '.join(FORMATS)}, "
            f"or one of {', '.join(SETS)}"
        )
    if words:
        form["dtype_act"] = _word(DType, words[0], "a dtype")
    if len(words) > 1:
        form["activation"] = _word(ActivationType, words[1], "an activation")
    return Shape(name=name, problem=_problem(tuple(sizes), **form))


def _word(kind: type[Word], text: str, what: str) -> Word:
    try:
        return kind(text)
    except ValueError:
        legal = ", ".join(member.value for member in kind)
        raise ValueError(
            f"found {text!r}, needed {what} ({legal}); or, at the end, a format of {', '.join(FORMATS)}"
        ) from None


def _split(parts: list[str]) -> tuple[list[int], list[str]]:
    num_sizes = next((i for i, part in enumerate(parts) if not part.isdecimal()), len(parts))
    return [int(part) for part in parts[:num_sizes]], parts[num_sizes:]


def _problem(sizes: tuple[int, ...], **form: Any) -> MoEProblem:
    num_experts, top_k, hidden_size, intermediate_size = sizes
    plain: dict[str, Any] = {
        "dtype_act": DType.BFLOAT16,
        "activation": ActivationType.SWIGLU,
        "bias": False,
        "routing": RoutingMethodType.RENORMALIZE,
        "routing_bias": False,
    }
    return MoEProblem(
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_experts=num_experts,
        top_k=top_k,
        **plain | form,
    )
