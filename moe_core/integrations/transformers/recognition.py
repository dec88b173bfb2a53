"""Which activation a function computes, found by evaluating it: names and configs are not believed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

import torch

from moe_core.activation import Activation
from moe_core.contract.vocabulary import ActivationType as Kind

MAGNITUDES: Final = (
    0.0,
    1e-2,
    0.1,
    0.3,
    0.5,
    1.0,
    1.5,
    2.0,
    3.0,
    4.0,
    5.0,
    6.5,
    8.0,
    12.0,
    20.0,
    50.0,
    300.0,
    1e3,
    1e4,
)
LARGEST: Final = 1e6
"""Larger constants are not looked beyond: a limit there is no limit to an activation."""
PLAIN: Final = (Kind.RELU2, Kind.SILU, Kind.GELU, Kind.RELU, Kind.IDENTITY)


@dataclass(frozen=True)
class Recognized:
    """What a function of FC1's output does."""

    activation: Activation
    interleaved: bool = False
    """Gate and up take turns in FC1's output; otherwise all of gate comes first."""


def recognize(
    function: Callable[[torch.Tensor], torch.Tensor],
    *,
    gated: bool,
    width: int,
    constants: Iterable[float],
    device: torch.device,
) -> Recognized | None:
    """The activation that `function` computes from FC1's output ``[R, G]``, or ``None`` when we have none like it.

    `function` is evaluated in float32 on a grid that is dense around zero and reaches far beyond every constant.

    Args:
        gated: whether G is ``2 * width``, gate and up, or `width`.
        constants: numbers that may be a constant of the activation, likely ones first. They only propose: what is
            recognized is what agrees at every point of the grid.
    """
    proposed = tuple(dict.fromkeys(float(c) for c in constants if 0 < c <= LARGEST))
    gate_RI, up_RI = _grid(proposed, gated, width, device)
    for interleaved in (False, True) if gated else (False,):
        actual_RI = _evaluate(function, gate_RI, up_RI if gated else None, interleaved)
        if actual_RI.shape != gate_RI.shape:
            return None
        # Rounding of products grows with both factors, also where the product itself is nearly zero.
        allowed_RI = 2e-6 * (1 + gate_RI.abs()) * (1 + up_RI.abs() if gated else 1) + 1e-5 * actual_RI.abs()
        for activation in _gated(proposed) if gated else map(Activation, PLAIN):
            expected_RI = activation(gate_RI, up_RI) if gated else activation(gate_RI)
            # Written so that NaN is no agreement.
            if bool(((actual_RI.float() - expected_RI).abs() <= allowed_RI).all()):
                return Recognized(activation, interleaved)
    return None


def _gated(constants: tuple[float, ...]) -> Iterator[Activation]:
    """Every gated activation with the constants, those with few constants first."""
    yield Activation(Kind.SWIGLU)
    yield Activation(Kind.GEGLU_TANH)
    yield Activation(Kind.GEGLU)
    for clamp, after in product(constants, (False, True)):
        yield Activation(Kind.SWIGLU, clamp=clamp, clamp_after_silu=after)
    for alpha, beta in product(constants, constants):
        yield Activation(Kind.SITU, alpha=alpha, beta=beta)
    for alpha, beta, limit in product((1.0, 1.702, *constants), (1.0, 0.0, *constants), (None, *constants)):
        yield Activation(Kind.SWIGLU_BIAS, alpha=alpha, beta=beta, clamp=limit)


def _grid(
    constants: tuple[float, ...], gated: bool, width: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Every pair of values as float32 ``[R, width]``; both with the same shape, repeated to fill the last row."""
    magnitudes = sorted({*MAGNITUDES, *(c * factor for c in constants for factor in (0.5, 1.25, 4.0))})
    values = torch.tensor([-m for m in magnitudes] + magnitudes, dtype=torch.float32, device=device)
    pairs_P2 = torch.cartesian_prod(values, values if gated else values.new_zeros(1))
    rows = -(-len(pairs_P2) // width)
    index = torch.arange(rows * width, device=device) % len(pairs_P2)
    return pairs_P2[index, 0].view(rows, width), pairs_P2[index, 1].view(rows, width)


def _evaluate(
    function: Callable[[torch.Tensor], torch.Tensor], gate: torch.Tensor, up: torch.Tensor | None, interleaved: bool
) -> torch.Tensor:
    if up is None:
        fc1 = gate
    else:
        fc1 = torch.stack([gate, up], dim=-1).flatten(-2) if interleaved else torch.cat([gate, up], dim=-1)
    with torch.no_grad(), torch.autocast(gate.device.type, enabled=False):
        return function(fc1.clone())
