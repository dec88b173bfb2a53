"""Expert weights whose gate and up projections are one matrix, as fused checkpoints and modules hold them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol, Self, runtime_checkable

import torch

from moe_core.quantization import plain
from moe_core.weights import ExpertWeights


@dataclass(frozen=True)
class FusedExpertWeights:
    """The experts of one layer with FC1 in one piece: G is 2 * I when the activation is gated, else I.

    Views of a module's parameters will do, in any memory order: nothing here copies but :meth:`joined`.
    """

    fc1_EGH: torch.Tensor
    w2_EHI: torch.Tensor
    fc1_bias_EG: torch.Tensor | None = None
    b2_EH: torch.Tensor | None = None
    gated: bool = True
    interleaved: bool = False
    """Rows of gate and up take turns, gate first; otherwise all of gate is above all of up."""

    @classmethod
    def joined(cls, weights: ExpertWeights) -> Self:
        """A contiguous copy of `weights` with gate and up in one matrix.

        Raises ``TypeError`` when they are quantized.
        """
        return cls(
            fc1_EGH=_joined(plain(weights.w1_EIH), None if weights.w3_EIH is None else plain(weights.w3_EIH)),
            w2_EHI=_copied(plain(weights.w2_EHI)),
            fc1_bias_EG=None if weights.b1_EI is None else _joined(weights.b1_EI, weights.b3_EI),
            b2_EH=None if weights.b2_EH is None else _copied(weights.b2_EH),
            gated=weights.w3_EIH is not None,
        )

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors that are there, by field name."""
        return {f.name: value for f in fields(self) if isinstance(value := getattr(self, f.name), torch.Tensor)}

    def apart(self) -> ExpertWeights:
        """Gate and up as views."""
        w1_EIH, w3_EIH = self.halves(self.fc1_EGH)
        b1_EI, b3_EI = (None, None) if self.fc1_bias_EG is None else self.halves(self.fc1_bias_EG)
        return ExpertWeights(
            w1_EIH=w1_EIH, w2_EHI=self.w2_EHI, w3_EIH=w3_EIH, b1_EI=b1_EI, b3_EI=b3_EI, b2_EH=self.b2_EH
        )

    def halves(self, fc1: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Gate and up of FC1's output ``[R, G]``, bias ``[E, G]`` or weights ``[E, G, H]``: views, I wide in dim 1.

        Without a gate, `fc1` itself and ``None``.
        """
        if not self.gated:
            return fc1, None
        if self.interleaved:
            return fc1[:, ::2], fc1[:, 1::2]
        gate, up = fc1.chunk(2, dim=1)
        return gate, up


@runtime_checkable
class TakesFused(Protocol):
    """A backend that may be given :meth:`prepare_fused` in place of ``prepare``, and then copies no weights."""

    def prepare_fused(self, weights: FusedExpertWeights) -> None:
        """Take this rank's weights."""


def _joined(gate: torch.Tensor, up: torch.Tensor | None) -> torch.Tensor:
    return _copied(gate) if up is None else torch.cat([gate, up], dim=1)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)
