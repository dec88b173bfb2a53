"""Expert weights as a checkpoint has them: gate, up and down apart, one row of matrices per expert."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self

import torch

from moe_core.contract.partition import width_share
from moe_core.quantization import Format, Matrix, QuantizedTensor
from moe_core.quantization.formats import FP8

INPUT_SCALES: Final = ("fc1_input_scale_E", "fc2_input_scale_E")
"""Fields of :class:`ExpertWeights` that are scales of inputs."""


@dataclass(frozen=True)
class ExpertWeights:
    """The experts of one layer, or of one rank's share of it. E experts, H hidden size, I intermediate size.

    An expert computes ``w2 @ activation(w1 @ x + b1, w3 @ x + b3) + b2``. Matrices are plain or quantized, all alike.
    """

    w1_EIH: Matrix
    """Gate; the only FC1 projection when the activation is not gated."""
    w2_EHI: Matrix
    """Down."""
    w3_EIH: Matrix | None = None
    """Up; ``None`` exactly when the activation is not gated."""
    b1_EI: torch.Tensor | None = None
    b3_EI: torch.Tensor | None = None
    b2_EH: torch.Tensor | None = None
    fc1_input_scale_E: torch.Tensor | None = None
    """float32: what one unit of a token in e4m3 stands for, calibrated beforehand: ``q = e4m3(x / scale)``, saturated.
    Equal for all experts, since they share the tokens. ``None``: kernels that quantize tokens scale them as they come.
    Of :data:`~moe_core.contract.vocabulary.QuantAlgo.FP8` alone."""
    fc2_input_scale_E: torch.Tensor | None = None
    """The same of what the activation gives."""

    def given(self) -> dict[str, Matrix]:
        """Matrices and biases that are there, by field name."""
        names = (f.name for f in fields(self) if f.name not in INPUT_SCALES)
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def input_scales(self) -> dict[str, torch.Tensor]:
        """Scales of inputs that are there, by field name."""
        return {name: value for name in INPUT_SCALES if (value := getattr(self, name)) is not None}

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors that are there, by field name; those of a quantized matrix as ``w1_EIH.scale``."""
        found: dict[str, torch.Tensor] = {}
        for name, value in self.given().items():
            if isinstance(value, QuantizedTensor):
                found |= {f"{name}.{part}": tensor for part, tensor in value.tensors().items()}
            else:
                found[name] = value
        return found | self.input_scales()

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        """A copy with `function` applied to every tensor."""

        def mapped(value: Matrix) -> Matrix:
            return value.map(function) if isinstance(value, QuantizedTensor) else function(value)

        return self._each(mapped, function)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """A copy on `device`, in `dtype`; quantized matrices and scales of inputs keep their format."""

        def moved(value: Matrix) -> Matrix:
            if isinstance(value, QuantizedTensor):
                return value.map(lambda tensor: tensor.to(device=device))
            return value.to(device=device, dtype=dtype)

        return self._each(moved, lambda scale: scale.to(device=device))

    def overwrite(self, others: ExpertWeights) -> None:
        """Copy `others`, of the same shapes and parts, into the memory of these; no address changes."""
        given = others.tensors()
        with torch.no_grad():
            for name, tensor in self.tensors().items():
                tensor.copy_(given[name])

    def of_slots(self, start: int, end: int) -> Self:
        """Experts ``[start, end)``: the share of an expert-parallel rank."""
        return self.map(lambda tensor: tensor[start:end])

    def of_tp_rank(self, rank: int, size: int) -> Self:
        """The share of a tensor-parallel rank: rows of w1 and w3, columns of w2; the last may be narrower.

        Outputs of the ranks are summed, so b2 stays with rank 0 alone. A share that begins within a block of
        elements with one scale keeps that scale, and says where it begins. Raises ``ValueError`` if that cuts a byte.
        """
        start, stop = width_share(self.w1_EIH.shape[1], rank, size)
        share = {"w1_EIH": 1, "w3_EIH": 1, "b1_EI": 1, "b3_EI": 1, "w2_EHI": 2}
        cut: dict[str, Any] = {
            name: value.narrow(share[name], start, stop - start)
            for name, value in self.given().items()
            if name in share
        }
        return replace(self, **cut, b2_EH=self.b2_EH if rank == 0 else None)

    def _each(self, function: Callable[[Matrix], Matrix], of_scales: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        changed: dict[str, Any] = {name: function(value) for name, value in self.given().items()}
        changed |= {name: of_scales(scale) for name, scale in self.input_scales().items()}
        return replace(self, **changed)


def misfits(
    weights: ExpertWeights,
    *,
    num_experts: int,
    hidden_size: int,
    intermediate_size: int,
    gated: bool,
    format_: Format | None = None,
) -> tuple[str, ...]:
    """Everything in which `weights` differ from the given sizes, as lines ``name: found …, needed …``.

    `format_` is that of the matrices; ``None``: they are plain.
    """
    E, I, H = num_experts, intermediate_size, hidden_size  # noqa: E741 - the letters of the shape suffixes
    needed: dict[str, tuple[int, ...]] = {"w1_EIH": (E, I, H), "w2_EHI": (E, H, I), "w3_EIH": (E, I, H)}
    needed |= {"b1_EI": (E, I), "b3_EI": (E, I), "b2_EH": (E, H)}
    found = weights.given()
    lines = [
        line
        for name, value in found.items()
        for line in _misfits(name, value, needed[name], format_ if name.startswith("w") else None)
    ]
    if gated and weights.w3_EIH is None:
        lines.append(f"w3_EIH: found nothing, needed {list(needed['w3_EIH'])}: the activation is gated")
    lines += [
        f"{name}: found a tensor, needed nothing: the activation is not gated"
        for name in ("w3_EIH", "b3_EI")
        if not gated and name in found
    ]
    lines += [line for name, scale in weights.input_scales().items() for line in _unfit(name, scale, E, format_)]
    return tuple(lines)


def _unfit(name: str, scale: torch.Tensor, num_experts: int, format_: Format | None) -> list[str]:
    """What makes `scale` no static scale of inputs."""
    if format_ != FP8:
        return [f"{name}: found a tensor, needed nothing: inputs have static scales where matrices are {FP8}"]
    if scale.shape != (num_experts,) or scale.dtype is not torch.float32:
        return [f"{name}: found {list(scale.shape)} of {scale.dtype}, needed [{num_experts}] of {torch.float32}"]
    least, most = scale.min().item(), scale.max().item()
    if not 0 < least == most < float("inf"):
        return [f"{name}: found {least} to {most}, needed one positive number; take the largest of all experts"]
    return []


def _misfits(name: str, value: Matrix, shape: tuple[int, ...], format_: Format | None) -> list[str]:
    match value, format_:
        case QuantizedTensor(), Format():
            return value.misfits(name, format_, shape)
        case QuantizedTensor(), None:
            return [f"{name}: found {value.format}, needed a matrix that is not quantized"]
        case torch.Tensor(), Format():
            return [f"{name}: found {value.dtype}, needed {format_}"]
    return [] if value.shape == shape else [f"{name}: found {list(value.shape)}, needed {list(shape)}"]
