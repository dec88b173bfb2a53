"""Gradients of experts that kernels computed: torch's operations compute them again, and are differentiated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeAlias

import torch
from torch.autograd.function import once_differentiable

from moe_core.activation import Activation
from moe_core.grouped import grouped_experts
from moe_plugins.triton_moe.paths import Prepared
from moe_plugins.triton_moe.prepared import PreparedWeights

Run: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Rows, ids and scales to the weighted sum of experts."""
Formula: TypeAlias = Callable[..., torch.Tensor]
"""Ids, then what is differentiated: rows, scales and weights."""

UNIT: Final = 8
"""Elements of 16 bytes, of which torch's operation takes whole ones."""


def are_wanted(prepared: Prepared, *inputs: torch.Tensor) -> bool:
    """Whether a graph is recorded that leads to any of these."""
    return torch.is_grad_enabled() and (prepared.requires_grad or any(tensor.requires_grad for tensor in inputs))


def run_recorded(
    run: Run,
    prepared: PreparedWeights,
    activation: Activation,
    slot_start: int,
    x_TH: torch.Tensor,
    ids_TK: torch.Tensor,
    scales_TK: torch.Tensor,
) -> torch.Tensor:
    """What `run` makes of T > 0 rows by the `prepared` weights, with gradients for rows, scales and weights.

    Only the inputs are kept until then. Raises ``RuntimeError`` where gradients could not be computed.
    """
    weights = prepared.given
    _check(prepared)
    names = tuple(weights.tensors())

    def formula(ids_TK: torch.Tensor, x_TH: torch.Tensor, scales_TK: torch.Tensor, *tensors: torch.Tensor) -> Any:
        parts: dict[str, Any] = dict(zip(names, tensors, strict=True))
        given = replace(weights, **parts)
        # The kernels round no sooner.
        return grouped_experts(x_TH, ids_TK, scales_TK, given, activation, slot_start, between=torch.float32)

    leaves = (x_TH, scales_TK, *weights.tensors().values())
    output: torch.Tensor = _Recorded.apply(run, formula, ids_TK, *leaves)  # type: ignore[no-untyped-call]
    return output


class _Recorded(torch.autograd.Function):
    """The kernels forward; backward, the gradient of the formula."""

    @staticmethod
    def forward(
        ctx: Any,
        run: Run,
        formula: Formula,
        ids_TK: torch.Tensor,
        x_TH: torch.Tensor,
        scales_TK: torch.Tensor,
        *tensors: torch.Tensor,
    ) -> torch.Tensor:
        ctx.formula = formula
        ctx.save_for_backward(ids_TK, x_TH, scales_TK, *tensors)
        return run(x_TH, ids_TK, scales_TK)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TH: torch.Tensor) -> Any:
        ids_TK, *inputs = ctx.saved_tensors
        is_wanted = ctx.needs_input_grad[3:]
        leaves = [t.detach().requires_grad_(wanted) for t, wanted in zip(inputs, is_wanted, strict=True)]
        with torch.enable_grad():
            output_TH = ctx.formula(ids_TK, *leaves)
        found = iter(torch.autograd.grad(output_TH, [leaf for leaf in leaves if leaf.requires_grad], grad_TH))
        return None, None, None, *(next(found) if wanted else None for wanted in is_wanted)


def _check(prepared: PreparedWeights) -> None:
    lacks = []
    if prepared.severed:
        lacks.append("found weights that require them, and were copied without a graph; needed prepare() to record one")
    if not hasattr(torch.nn.functional, "grouped_mm"):
        lacks.append(f"found torch {torch.__version__}, needed 2.10 or newer, for its grouped_mm")
    hidden, inner = prepared.weights.w2_EHI.shape[1:]
    if hidden % UNIT or inner % UNIT:
        lacks.append(f"found sizes {hidden} and {inner}, needed multiples of {UNIT}, which torch's grouped_mm takes")
    if lacks:
        lines = ["the experts have no gradients here:", *lacks, "try: torch.no_grad(), or VANILLA"]
        raise RuntimeError("\n  ".join(lines))
