"""What the experts of a layer are called in checkpoints, as data; the keys tell which scheme it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from moe_core.checkpoint.errors import CheckpointError
from moe_core.checkpoint.files import Checkpoint
from moe_core.contract.vocabulary import Word

EXPERT: Final = "{e}"
_BESIDE: Final = re.compile(r"(^|\.)(mtp|talker|visual|vision_\w+|audio_\w+)\.")
"""Parts of a checkpoint whose layers are not those of the model."""


class WeightLoadingMode(Word):
    """How a checkpoint holds the experts of a layer; TensorRT-LLM's words."""

    VANILLA = "VANILLA"
    """Keys per expert, gate and up apart."""
    FUSED_GATE_UP_PROJ = "FUSED_GATE_UP_PROJ"
    """Keys per layer that hold all experts."""
    W4A8_CUSTOM = "W4A8_CUSTOM"
    """Keys per expert with four-bit codes whose scale is ``weight_scale_inv``."""


class Rows(Word):
    """Which rows of a stored matrix are a projection's."""

    ALL = "all"
    FIRST_HALF = "first half"
    SECOND_HALF = "second half"
    EVEN = "even"
    ODD = "odd"


@dataclass(frozen=True)
class Projection:
    """Where one projection is: its path inside the block, ``{e}`` standing for the expert; none: all are in one."""

    path: str
    rows: Rows = Rows.ALL

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Of the path of any of its keys inside a layer; group 1 is the block."""
        return re.compile(rf"((?:.+\.)?){re.escape(self.path).replace(re.escape(EXPERT), '[0-9]+')}(?![A-Za-z0-9]).*")


@dataclass(frozen=True)
class Scheme:
    """Names of the three projections, and how the names of their tensors are made from them."""

    name: str
    w1: Projection
    """Gate; the only one of FC1 when the experts are not gated."""
    w2: Projection
    w3: Projection | None = None
    weight: str = ".weight"
    """What follows a projection's path in the key of its matrix."""
    marker: str = ""
    """A path that must be there."""
    model_types: tuple[str, ...] = ()
    """The only models that it is for; none: any."""

    @property
    def projections(self) -> tuple[Projection, ...]:
        """Those that there are."""
        return (self.w1, self.w2) if self.w3 is None else (self.w1, self.w2, self.w3)

    @property
    def is_stacked(self) -> bool:
        """Whether a tensor holds all experts."""
        return EXPERT not in self.w2.path

    def word(self, path: str, word: str) -> str:
        """The key of the tensor `word` of the projection at `path`."""
        if word == "weight":
            return path + self.weight
        return path + ("." if self.weight.startswith(".") else "_") + word

    @property
    def scopes(self) -> tuple[str, ...]:
        """What all keys of the experts begin with."""
        paths = (p.path for p in self.projections)
        return tuple(dict.fromkeys("experts." if path.startswith("experts.") else path for path in paths))


def _fused(
    name: str, fc1: str, fc2: str, weight: str = "", *, interleaved: bool = False, marker: str = "",
    model_types: tuple[str, ...] = (),
) -> Scheme:  # fmt: skip
    rows = (Rows.EVEN, Rows.ODD) if interleaved else (Rows.FIRST_HALF, Rows.SECOND_HALF)
    gate, up = (Projection(fc1, half) for half in rows)
    return Scheme(name, gate, Projection(fc2), up, weight, marker, model_types)


def _apart(name: str, w1: str, w2: str, w3: str | None, weight: str = ".weight") -> Scheme:
    return Scheme(name, Projection(w1), Projection(w2), None if w3 is None else Projection(w3), weight)


_BIASED: Final = "experts.gate_up_proj_bias"
SCHEMES: Final = (
    _apart("Mixtral", "experts.{e}.w1", "experts.{e}.w2", "experts.{e}.w3"),
    _apart("Qwen, DeepSeek, GLM", "experts.{e}.gate_proj", "experts.{e}.down_proj", "experts.{e}.up_proj"),
    _apart("Nemotron-H", "experts.{e}.up_proj", "experts.{e}.down_proj", None),
    _fused(
        "OpenAI privacy filter", "experts.gate_up_proj", "experts.down_proj",
        marker=_BIASED, model_types=("openai_privacy_filter",),
    ),
    _fused("gpt-oss", "experts.gate_up_proj", "experts.down_proj", interleaved=True, marker=_BIASED),
    _fused("transformers 5, Llama 4", "experts.gate_up_proj", "experts.down_proj"),
    _apart("transformers 5, not gated", "experts.up_proj", "experts.down_proj", None, ""),
    _fused("Granite", "input_linear", "output_linear", ".weight"),
    _apart("Step", "moe.gate_proj", "moe.down_proj", "moe.up_proj"),
)  # fmt: skip
"""The first that fits is taken. Where a stacked matrix is transposed its shape tells."""


@dataclass(frozen=True)
class Found:
    """A scheme, and the layer's keys that it is for."""

    scheme: Scheme
    prefix: str
    """Of the layer, as ``model.layers.3.``."""
    block: str
    """Of the experts in the layer, as ``mlp.``; may be empty."""
    paths: tuple[str, ...]
    """All keys of the layer, without the prefix."""

    def template(self, projection: Projection, word: str) -> str:
        """The key of a tensor of `projection`, with ``{e}`` where the expert stands."""
        return self.prefix + self.block + self.scheme.word(projection.path, word)

    def keys(self, projection: Projection, word: str, experts: range) -> list[str]:
        """The keys of the tensor `word` of `projection`: one per expert, or one for all."""
        template = self.template(projection, word)
        return list(dict.fromkeys(template.replace(EXPERT, str(expert)) for expert in experts))


def find(checkpoint: Checkpoint, layer: int, *, gated: bool) -> Found:
    """Where the experts of `layer` are; raises :class:`CheckpointError` when that is nowhere, or not certain."""
    found = next((f for s in SCHEMES if _is_for(s, checkpoint, gated) and (f := _all(s, checkpoint, layer))), [])
    if len(found) == 1:
        return found[0]
    asked = f"the experts of layer {layer} of {checkpoint.name}"
    if found:
        places = ", ".join(f"{f.prefix}{f.block}" for f in found)
        raise CheckpointError(asked, [f"found {found[0].scheme.name} experts in {places}, needed them in one place"])
    raise CheckpointError(asked, list(_nothing(checkpoint, layer, gated)))


def layers_with_experts(checkpoint: Checkpoint) -> tuple[int, ...]:
    """Layers in which some scheme finds experts, ascending."""
    return tuple(layer for layer in checkpoint.layers if any(_all(s, checkpoint, layer) for s in SCHEMES))


def _is_for(scheme: Scheme, checkpoint: Checkpoint, gated: bool) -> bool:
    if scheme.model_types and not set(scheme.model_types) & set(checkpoint.model_types):
        return False
    return gated == (scheme.w3 is not None)


def _all(scheme: Scheme, checkpoint: Checkpoint, layer: int) -> list[Found]:
    found = {}
    for prefix, paths in checkpoint.layers.get(layer, {}).items():
        if _BESIDE.search(prefix):
            continue
        for path in paths:
            match = scheme.w2.pattern.fullmatch(path) or scheme.w1.pattern.fullmatch(path)
            if match and (not scheme.marker or match[1] + scheme.marker in paths):
                found[prefix + match[1]] = Found(scheme, prefix, match[1], paths)
    return list(found.values())


def _nothing(checkpoint: Checkpoint, layer: int, gated: bool) -> Iterator[str]:
    kind = "gated" if gated else "not gated"
    known = "; ".join(f"{s.name}: {s.w1.path}" for s in SCHEMES if gated == (s.w3 is not None))
    near = sorted({p for paths in checkpoint.layers.get(layer, {}).values() for p in paths if "expert" in p})[:3]
    yield f"found {', '.join(near) or 'no key of experts'}; needed experts that are {kind}, under one of: {known}"
    others = layers_with_experts(checkpoint)
    if others and layer not in others:
        yield f"layers with experts are {others[0]} … {others[-1]}, {len(others)} of them"
