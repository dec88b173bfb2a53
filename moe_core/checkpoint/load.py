"""Experts of a layer from a checkpoint: this rank's slots and its shard, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch

from moe_core.checkpoint.check import troubles
from moe_core.checkpoint.errors import CheckpointError
from moe_core.checkpoint.files import Checkpoint, OpenFiles
from moe_core.checkpoint.places import Place, Span
from moe_core.checkpoint.plan import Plan, Sizes, plan_layer
from moe_core.contract.partition import width_share
from moe_core.contract.problem import MoEProblem
from moe_core.quantization import Format, Matrix, QuantizedTensor
from moe_core.quantization.blocks import WHOLE
from moe_core.quantization.elements import MIDDLE
from moe_core.weights import ExpertWeights

Progress: TypeAlias = Callable[[int, int], None]
"""Called after every expert with how many are there, of how many."""


def load_layer(
    checkpoint: Checkpoint,
    layer: int,
    problem: MoEProblem,
    *,
    slots: Span | None = None,
    tp: tuple[int, int] = (0, 1),
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> ExpertWeights:
    """The experts of `layer`, in the format of `problem` and bit for bit those of the checkpoint.

    Experts are read one after another, and of each no more than this rank's shard: beside the result, memory holds
    a part of one expert. Of static scales of inputs, in FP8 per tensor, every expert gets the largest of the layer's,
    whichever experts are asked for; in other formats they are not read, and backends scale inputs as they come.

    Args:
        slots: the first expert and one past the last; default: all.
        tp: rank and size of MoE tensor parallelism; shares are those of :meth:`ExpertWeights.of_tp_rank`.

    Raises:
        CheckpointError: keys, shapes, element types or packing are not what the problem needs, or a share cuts a byte;
            with everything that does not fit.
        ValueError: the problem says too little, or there are no such slots or ranks.
    """
    sizes = Sizes.of(problem)
    experts, share = range(*(slots or (0, sizes.num_experts))), width_share(sizes.intermediate, *tp)
    if not 0 <= experts.start < experts.stop <= sizes.num_experts:
        raise ValueError(f"slots: found {slots}, needed a start and a later end within 0 … {sizes.num_experts}")
    with checkpoint.reading() as files:
        plan = plan_layer(checkpoint, files, layer, sizes)
        if lines := troubles(checkpoint, files, plan, experts, share):
            raise CheckpointError(f"the experts of layer {layer} of {checkpoint.name}, {sizes.quant}", lines)
        fields = {
            name: _Field(plan, name, share, len(experts), torch.device(device))
            for name in plan.fields
            if name != "b2_EH" or tp[0] == 0  # the outputs of the ranks are summed
        }
        for number, expert in enumerate(experts):
            for field in fields.values():
                field.take(number, expert, files)
            if progress is not None:
                progress(number + 1, len(experts))
        input_scales = {
            name: _largest(files, plan, places).repeat(len(experts)).to(device)
            for name, places in plan.input_scales.items()
        }
    matrices = {name: field.value() for name, field in fields.items()}
    return ExpertWeights(**matrices, **input_scales)  # type: ignore[arg-type]  # names and types are the fields' own


def _largest(files: OpenFiles, plan: Plan, places: Sequence[Place]) -> torch.Tensor:
    """The largest element at `places` of any expert, float32 ``[]``."""
    keys = dict.fromkeys(place.key(expert) for place in places for expert in range(plan.sizes.num_experts))
    return torch.cat([files.read(key).float().flatten() for key in keys]).max()


class _Field:
    """One field of :class:`ExpertWeights` while it is filled."""

    def __init__(self, plan: Plan, name: str, share: Span, num_experts: int, device: torch.device) -> None:
        self._places: Mapping[str, Place] = plan.fields[name]
        self._spans = plan.spans(name, share)
        self._is_bias = name.startswith("b")
        self._format: Format | None = None if self._is_bias else plan.sizes.format
        self._num_experts, self._device = num_experts, device
        self._parts: dict[str, torch.Tensor] = {}
        (first_row, last_row), (first_column, last_column) = self._spans
        rows, columns = last_row - first_row, last_column - first_column
        self._shapes = {"data": (rows, columns)}
        self._offset = WHOLE
        if self._format is not None:
            self._offset = self._format.offset(first_row, first_column)
            parts = self._format.parts((rows, columns), self._offset)
            self._shapes = {name: (part.shape[0], part.shape[1]) for name, part in parts.items()}

    def take(self, number: int, expert: int, files: OpenFiles) -> None:
        """Put the share of `expert` in slot `number`."""
        for name, place in self._places.items():
            rows, columns = self._shapes[name]
            row, column = place.ahead(*self._spans)
            # The last word of packed codes may be half full, or half the next rank's.
            part = place.read(files, expert, *self._spans)[row : row + rows, column : column + columns]
            if name not in self._parts:
                self._parts[name] = torch.empty(self._num_experts, rows, columns, dtype=part.dtype, device=self._device)
            self._parts[name][number].copy_(part)

    def value(self) -> Matrix:
        """What was taken."""
        if self._format is None:
            return self._parts["data"].squeeze(-1) if self._is_bias else self._parts["data"]
        parts = self._parts
        if "zero" in parts and bool((parts["zero"] == MIDDLE).all()):
            # GPTQ writes the zero points of symmetric groups too, which kernels without zero points can take.
            parts = {name: part for name, part in parts.items() if name != "zero"}
        return QuantizedTensor(self._format, **parts, offset=self._offset)
