"""The activation between the two projections, on tiles in registers."""

# Kernels are functions of tiles, for which Python has no types; their names are those of the formulas.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

import triton
import triton.language as tl

from moe_core.activation import Activation


def activation_meta(activation: Activation) -> dict[str, object]:
    """`activation` as the compile-time arguments of the kernels; a clamp of 0 stands for none."""
    return {
        "KIND": activation.kind.value.lower(),
        "ALPHA": 1.0 if activation.alpha is None else activation.alpha,
        "BETA": 0.0 if activation.beta is None else activation.beta,
        "CLAMP": 0.0 if activation.clamp is None else activation.clamp,
        "AFTER": activation.clamp_after_silu,
    }


@triton.jit
def activate(
    gate, up, KIND: tl.constexpr, ALPHA: tl.constexpr, BETA: tl.constexpr, CLAMP: tl.constexpr, AFTER: tl.constexpr
):
    """float32 tiles of FC1's halves, after bias, to the activation; `up` is not read when `KIND` is not gated.

    The formulas are those of :class:`moe_core.activation.Activation`.
    """
    if CLAMP > 0.0:
        up = tl.minimum(tl.maximum(up, -CLAMP), CLAMP)
        if not AFTER:
            gate = tl.minimum(gate, CLAMP)
    if KIND == "swiglu":
        out = gate * _sigmoid(gate)
        if AFTER:
            out = tl.minimum(out, CLAMP)
        out = out * up
    elif KIND == "swiglubias":
        out = gate * _sigmoid(ALPHA * gate) * (up + BETA)
    elif KIND == "geglu":
        out = _gelu(gate) * up
    elif KIND == "geglutanh":
        out = 0.5 * gate * (1.0 + _tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate))) * up
    elif KIND == "situ":
        out = ALPHA * _tanh(gate / ALPHA) * _sigmoid(gate) * (BETA * _tanh(up / BETA))
    elif KIND == "gelu":
        out = _gelu(gate)
    elif KIND == "relu":
        out = tl.maximum(gate, 0.0)
    elif KIND == "silu":
        out = gate * _sigmoid(gate)
    elif KIND == "relu2":
        out = tl.maximum(gate, 0.0) * tl.maximum(gate, 0.0)
    else:
        tl.static_assert(KIND == "identity", "an activation that the kernels do not know")
        out = gate
    return out


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _tanh(x):
    return 2.0 * _sigmoid(2.0 * x) - 1.0


@triton.jit
def _gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
