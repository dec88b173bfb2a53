"""From bits, groups and scales to a named format."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from moe_core.contract.memory import DEFAULT_GROUP_SIZE
from moe_core.contract.vocabulary import QuantAlgo

_ALGO = QuantAlgo
Granularity = Literal["tensor", "channel", "token", "group", "block"]


class Format(NamedTuple):
    """A format of routed experts; `algo` is ``None`` when it is unknown, and then `note` says why."""

    algo: QuantAlgo | None
    group_size: int | None = None
    note: str = ""


UNQUANTIZED: Final = Format(QuantAlgo.NONE)


def named(algo: QuantAlgo, group_size: int | None = None, note: str = "") -> Format:
    """`algo` with its customary group size where none is given."""
    return Format(algo, group_size or DEFAULT_GROUP_SIZE.get(algo), note)


def unknown(what: str) -> Format:
    """A format that has no name here."""
    return Format(None, None, f"the format of the experts is unknown: {what}")


class Operand(NamedTuple):
    """How weights or activations are quantized."""

    kind: Literal["int", "float"]
    bits: int
    granularity: Granularity
    group_size: int | None = None
    symmetric: bool = True

    def __str__(self) -> str:
        group = f" of {self.group_size}" if self.group_size else ""
        return f"{self.kind}{self.bits} per {self.granularity}{group}"


def classify(weights: Operand, inputs: Operand | None) -> Format:
    """The format of weights and activations that are described by numbers; `inputs` is ``None`` for weight-only."""
    unnamed = unknown(f"weights {weights}, activations {inputs or 'not quantized'}")
    if weights.kind == "int":
        return _integer(weights, inputs) or unnamed
    if weights.bits == 4 and weights.group_size in (16, 32):
        return _fp4(weights.group_size, inputs) or unnamed
    if weights.bits == 8 and inputs is not None and (inputs.kind, inputs.bits) == ("float", 8):
        return _fp8(weights, inputs) or unnamed
    return unnamed


def _integer(weights: Operand, inputs: Operand | None) -> Format | None:
    if weights.bits == 8:
        if inputs is None:
            return Format(_ALGO.W8A16)
        return Format(_ALGO.W8A8_SQ) if (inputs.kind, inputs.bits) == ("int", 8) else None
    if weights.bits != 4 or inputs is not None:
        return None
    if weights.granularity != "group":
        return Format(_ALGO.W4A16)
    algo = _ALGO.W4A16_GPTQ if weights.symmetric else _ALGO.W4A16_AWQ
    points = "without" if weights.symmetric else "with"
    return named(algo, weights.group_size, f"{weights} {points} zero points: read as {algo}")


def _fp4(group_size: int, inputs: Operand | None) -> Format | None:
    """NVFP4 has groups of 16, MXFP4 groups of 32."""
    algos: dict[tuple[int, int | None, bool], QuantAlgo] = {
        (16, None, False): _ALGO.W4A16_NVFP4,
        (16, 4, True): _ALGO.NVFP4,
        (32, None, False): _ALGO.W4A16_MXFP4,
        (32, 8, False): _ALGO.W4A8_MXFP4_FP8,
        (32, 8, True): _ALGO.W4A8_MXFP4_MXFP8,
    }
    if inputs is not None and inputs.kind != "float":
        return None
    bits = None if inputs is None else inputs.bits
    algo = algos.get((group_size, bits, inputs is not None and inputs.group_size == group_size))
    return None if algo is None else named(algo, group_size)


def _fp8(weights: Operand, inputs: Operand) -> Format | None:
    if weights.granularity == "block" and weights.group_size == 128:
        return named(_ALGO.FP8_BLOCK_SCALES)
    if weights.granularity in ("group", "block") and weights.group_size == 32:
        return named(_ALGO.MXFP8)
    if weights.granularity == "channel" and inputs.granularity == "token":
        return Format(_ALGO.FP8_PER_CHANNEL_PER_TOKEN)
    return Format(_ALGO.FP8) if weights.granularity == inputs.granularity == "tensor" else None
