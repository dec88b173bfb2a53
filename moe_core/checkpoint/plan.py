"""From a problem and the keys of a layer to where every tensor of its experts is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch

from moe_core.checkpoint.files import Checkpoint, OpenFiles
from moe_core.checkpoint.places import Place, Span
from moe_core.checkpoint.schemes import Found, Projection, WeightLoadingMode, find
from moe_core.checkpoint.storages import STORAGES, Part, Storage
from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import QuantAlgo
from moe_core.quantization import Format, weight_format
from moe_core.quantization.blocks import Block
from moe_core.weights import INPUT_SCALES

BIAS: Final = Part(("bias",), ())


@dataclass(frozen=True)
class Sizes:
    """What a problem has to say before its experts can be found."""

    num_experts: int
    hidden: int
    intermediate: int
    gated: bool
    quant: QuantAlgo
    dtype: torch.dtype
    """Of what is not quantized."""
    bias: bool | None
    format: Format | None
    """Of the matrices; ``None``: they are not quantized."""

    @classmethod
    def of(cls, problem: MoEProblem) -> Sizes:
        """Raises ``ValueError`` with the fields that are unknown, or when the format has no such groups."""
        p = problem
        known: dict[str, object] = {
            "num_experts": p.num_experts,
            "hidden_size": p.hidden_size,
            "intermediate_size": p.intermediate_size,
        }
        known |= {"activation": p.is_gated, "quant": p.quant, "dtype_act": p.dtype_act}
        if unknown := [name for name, value in known.items() if value is None]:
            raise ValueError(f"experts cannot be found: {', '.join(unknown)} unknown; give it in the problem")
        assert p.num_experts is not None
        assert p.hidden_size is not None
        assert p.intermediate_size is not None
        assert p.quant is not None
        assert p.dtype_act is not None
        return cls(
            num_experts=p.num_experts,
            hidden=p.hidden_size,
            intermediate=p.intermediate_size,
            gated=bool(p.is_gated),
            quant=p.quant,
            dtype=getattr(torch, p.dtype_act.value),
            bias=p.bias,
            format=weight_format(p.quant, p.quant_group_size),
        )


@dataclass(frozen=True)
class Plan:
    """Where the experts of a layer are."""

    found: Found
    storage: Storage
    sizes: Sizes
    fields: Mapping[str, Mapping[str, Place]]
    """By field of :class:`moe_core.weights.ExpertWeights`, then by part."""
    input_scales: Mapping[str, tuple[Place, ...]]
    """Those that there are, by field; of all experts the largest counts, and of gate and up."""

    @property
    def mode(self) -> WeightLoadingMode:
        """How the checkpoint holds them."""
        if self.sizes.quant is QuantAlgo.W4A8_CUSTOM:
            return WeightLoadingMode.W4A8_CUSTOM
        return WeightLoadingMode.FUSED_GATE_UP_PROJ if self.found.scheme.is_stacked else WeightLoadingMode.VANILLA

    def places(self) -> Iterator[Place]:
        """Every place of matrices and biases."""
        for parts in self.fields.values():
            yield from parts.values()

    def input_places(self) -> Iterator[Place]:
        """Every place of scales of inputs."""
        for places in self.input_scales.values():
            yield from places

    def spans(self, field: str, share: Span) -> tuple[Span, Span]:
        """Rows and columns of `field` in the share ``[start, end)`` of the intermediate size."""
        first = next(iter(self.fields[field].values()))
        rows, columns = first.size
        if field == "w2_EHI":
            return (0, rows), share
        return (0, rows) if field == "b2_EH" else share, (0, columns)


@dataclass(frozen=True)
class _Keys:
    """The keys of a layer's experts, and what they lack."""

    checkpoint: Checkpoint
    found: Found
    sizes: Sizes

    def word(self, projection: Projection, part: Part) -> str | None:
        """What `part` is called here; ``None`` when no expert has it."""
        return next((word for word in part.names if self._exists(projection, word)), None)

    def fields(self, storage: Storage, *, is_turned: bool) -> dict[str, dict[str, Place]]:
        """The places of all matrices and biases that are needed, or there."""
        s, scheme = self.sizes, self.found.scheme
        wide, narrow = (s.intermediate, s.hidden), (s.hidden, s.intermediate)
        projections = [("w1_EIH", "b1_EI", scheme.w1, wide), ("w2_EHI", "b2_EH", scheme.w2, narrow)]
        if scheme.w3 is not None:
            projections.append(("w3_EIH", "b3_EI", scheme.w3, wide))
        fields = {}
        for matrix, bias, projection, size in projections:
            fields[matrix] = self._matrix(storage, projection, size, is_turned)
            if s.bias or (s.bias is None and self.word(projection, BIAS)):
                fields[bias] = {"data": self._place(projection, BIAS, (size[0], 1), (1, None))}
        return fields

    def input_scales(self, storage: Storage) -> dict[str, tuple[Place, ...]]:
        """The places of the scales of inputs, if there are any that the format uses."""
        scheme, part = self.found.scheme, storage.input_scale
        if part is None:
            return {}
        of_fc1 = [scheme.w1] if scheme.w3 is None else [scheme.w1, scheme.w3]
        found = {
            field: tuple(self._place(p, part, (1, 1), (None, None)) for p in projections if self.word(p, part))
            for field, projections in zip(INPUT_SCALES, (of_fc1, [scheme.w2]), strict=True)
        }
        return {field: places for field, places in found.items() if places}

    def _matrix(
        self, storage: Storage, projection: Projection, size: tuple[int, int], is_turned: bool
    ) -> dict[str, Place]:
        shared = {"data": (1, 1), "global_scale": (None, None)}
        format_ = self.sizes.format
        block = (1, 1) if format_ is None else format_.block
        codes = {} if format_ is None else {"data": format_.element.codes_per_byte}
        return {
            name: self._place(projection, part, size, shared.get(name, block), is_turned, codes.get(name, 1))
            for name, part in storage.parts.items()
            if not part.is_optional or self.word(projection, part)
        }

    def _place(
        self,
        projection: Projection,
        part: Part,
        size: tuple[int, int],
        block: Block,
        is_turned: bool = False,
        codes: int = 1,
    ) -> Place:
        template = self.found.template(projection, self.word(projection, part) or part.names[0])
        return Place(template, part, projection.rows, size, block, self.sizes.num_experts, codes, is_turned)

    def _exists(self, projection: Projection, word: str) -> bool:
        keys = self.found.keys(projection, word, range(self.sizes.num_experts))
        return any(key in self.checkpoint.file_of for key in keys)


def plan_layer(checkpoint: Checkpoint, files: OpenFiles, layer: int, sizes: Sizes) -> Plan:
    """Where the experts of `layer` are, or would be where they are missing.

    Raises :class:`CheckpointError` when no scheme finds any.
    """
    keys = _Keys(checkpoint, find(checkpoint, layer, gated=sizes.gated), sizes)
    scheme = keys.found.scheme
    storage = max(
        STORAGES[sizes.quant], key=lambda s: sum(keys.word(scheme.w2, part) is not None for part in s.parts.values())
    )
    ways = [
        Plan(keys.found, storage, sizes, keys.fields(storage, is_turned=is_turned), keys.input_scales(storage))
        for is_turned in ((False, True) if scheme.is_stacked else (False,))
    ]
    return min(ways, key=lambda way: sum(not _fits(place, checkpoint, files) for place in way.places()))


def _fits(place: Place, checkpoint: Checkpoint, files: OpenFiles) -> bool:
    key = place.key(0)
    return key in checkpoint.file_of and place.fits(files.shape(key))
