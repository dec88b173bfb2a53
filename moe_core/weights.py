"""Expert weights as a checkpoint has them: gate, up and down apart, one row of matrices per expert."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Self

import torch


@dataclass(frozen=True)
class ExpertWeights:
    """The experts of one layer, or of one rank's share of it. E experts, H hidden size, I intermediate size.

    An expert computes ``w2 @ activation(w1 @ x + b1, w3 @ x + b3) + b2``.
    """

    w1_EIH: torch.Tensor
    """Gate; the only FC1 projection when the activation is not gated."""
    w2_EHI: torch.Tensor
    """Down."""
    w3_EIH: torch.Tensor | None = None
    """Up; ``None`` exactly when the activation is not gated."""
    b1_EI: torch.Tensor | None = None
    b3_EI: torch.Tensor | None = None
    b2_EH: torch.Tensor | None = None

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors that are there, by field name."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        """A copy with `function` applied to every tensor."""
        return type(self)(**{name: function(tensor) for name, tensor in self.tensors().items()})

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """A copy on `device` in `dtype`."""
        return self.map(lambda tensor: tensor.to(device=device, dtype=dtype))

    def of_slots(self, start: int, end: int) -> Self:
        """Experts ``[start, end)``: the share of an expert-parallel rank."""
        return self.map(lambda tensor: tensor[start:end])

    def of_tp_rank(self, rank: int, size: int) -> Self:
        """The share of a tensor-parallel rank: rows of w1 and w3, columns of w2; the last may be narrower.

        Outputs of the ranks are summed, so b2 stays with rank 0 alone.
        """
        width = -(-self.w1_EIH.shape[1] // size)
        part = slice(rank * width, (rank + 1) * width)
        return type(self)(
            w1_EIH=self.w1_EIH[:, part],
            w2_EHI=self.w2_EHI[:, :, part],
            w3_EIH=None if self.w3_EIH is None else self.w3_EIH[:, part],
            b1_EI=None if self.b1_EI is None else self.b1_EI[:, part],
            b3_EI=None if self.b3_EI is None else self.b3_EI[:, part],
            b2_EH=self.b2_EH if rank == 0 else None,
        )


def misfits(
    weights: ExpertWeights, *, num_experts: int, hidden_size: int, intermediate_size: int, gated: bool
) -> tuple[str, ...]:
    """Everything in which `weights` differ from the given sizes, as lines ``name: found …, needed …``."""
    E, I, H = num_experts, intermediate_size, hidden_size  # noqa: E741 - the letters of the shape suffixes
    needed: dict[str, tuple[int, ...]] = {"w1_EIH": (E, I, H), "w2_EHI": (E, H, I), "w3_EIH": (E, I, H)}
    needed |= {"b1_EI": (E, I), "b3_EI": (E, I), "b2_EH": (E, H)}
    found = weights.tensors()
    lines = [
        f"{name}: found {list(tensor.shape)}, needed {list(needed[name])}"
        for name, tensor in found.items()
        if tensor.shape != needed[name]
    ]
    if gated and weights.w3_EIH is None:
        lines.append(f"w3_EIH: found nothing, needed {list(needed['w3_EIH'])}: the activation is gated")
    lines += [
        f"{name}: found a tensor, needed nothing: the activation is not gated"
        for name in ("w3_EIH", "b3_EI")
        if not gated and name in found
    ]
    return tuple(lines)
