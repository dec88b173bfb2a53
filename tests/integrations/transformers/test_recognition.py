"""An activation is what it computes: names, defaults and layouts prove nothing."""

import pytest
import torch
from torch.nn import functional as F

from moe_core.activation import Activation
from moe_core.contract.vocabulary import ActivationType as Kind
from moe_core.integrations.transformers.recognition import recognize

GATED = {
    "swiglu": Activation(Kind.SWIGLU),
    "swiglu_clamp": Activation(Kind.SWIGLU, clamp=7.0),
    "swiglu_clamp_after_silu": Activation(Kind.SWIGLU, clamp=7.0, clamp_after_silu=True),
    "swiglu_bias": Activation(Kind.SWIGLU_BIAS, alpha=1.702, beta=1.0, clamp=7.0),
    "swiglu_bias_without_clamp": Activation(Kind.SWIGLU_BIAS, alpha=1.5, beta=0.25),
    "geglu": Activation(Kind.GEGLU),
    "geglu_tanh": Activation(Kind.GEGLU_TANH),
    "situ": Activation(Kind.SITU, alpha=20.0, beta=15.0),
}


def recognized(function, gated=True, constants=(), width=16):
    found = recognize(function, gated=gated, width=width, constants=constants, device=torch.device("cpu"))
    return None if found is None else (found.activation, found.interleaved)


@pytest.mark.parametrize("width", [1, 24, 4096])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("name", GATED)
def test_every_gated_activation_of_ours(name, interleaved, width):
    activation = GATED[name]

    def apply_gate(fc1):
        return activation(fc1[..., ::2], fc1[..., 1::2]) if interleaved else activation(*fc1.chunk(2, dim=-1))

    # Among numbers that have nothing to do with it.
    constants = (8, 64, *(getattr(activation, c) for c in activation.constants), 1e-5)
    # A single gate with its up: both orders are the same.
    assert recognized(apply_gate, constants=constants, width=width) == (activation, interleaved and width > 1)


@pytest.mark.parametrize("kind", [k for k in Kind if not k.is_gated])
def test_every_plain_activation_of_ours(kind):
    assert recognized(Activation(kind), gated=False) == (Activation(kind), False)


def test_equal_functions_are_one_whatever_they_are_called():
    def quick(fc1):
        gate, up = fc1.chunk(2, dim=-1)
        return gate * torch.sigmoid(1.702 * gate) * up

    assert recognized(quick) == (Activation(Kind.SWIGLU_BIAS, alpha=1.702, beta=0.0), False)
    assert recognized(lambda x: torch.square(F.relu(x)), gated=False) == (Activation(Kind.RELU2), False)

    def in_double(fc1):
        gate, up = fc1.double().chunk(2, dim=-1)
        return (F.silu(gate) * up).float()

    assert recognized(in_double) == (Activation(Kind.SWIGLU), False)


def halves(function):
    return lambda fc1: function(*fc1.chunk(2, dim=-1))


GATED_STRANGERS = {
    "reglu": lambda gate, up: F.relu(gate) * up,
    "up first": lambda gate, up: F.silu(up) * gate,
    "a hidden limit": lambda gate, up: F.silu(gate.clamp(max=9.0)) * up,
    "a distant limit on one side": lambda gate, up: F.silu(gate) * up.clamp(min=-3000.0),
    "a hidden factor": lambda gate, up: F.silu(gate) * up * 1.001,
    "a hidden alpha": lambda gate, up: gate * torch.sigmoid(1.71 * gate) * up,
    "a hidden addend": lambda gate, up: F.silu(gate) * up + 0.001,
    "rounding": lambda gate, up: (F.silu(gate) * up).to(torch.bfloat16),
    "nan somewhere": lambda gate, up: torch.where(gate > 100, torch.nan, F.silu(gate) * up),
    "dropout": lambda gate, up: F.dropout(F.silu(gate) * up, 0.1),
    "one scale per channel": lambda gate, up: F.silu(gate) * up * torch.linspace(1, 2, gate.shape[-1]),
    "both halves": lambda gate, up: F.silu(torch.cat([gate, up], dim=-1)),
}
PLAIN_STRANGERS = {
    "mish": F.mish,
    "tanh": torch.tanh,
    "cubed relu": lambda x: F.relu(x) ** 3,
    "leaky relu": lambda x: F.leaky_relu(x, 1e-3),
}


@pytest.mark.parametrize("name", GATED_STRANGERS)
def test_what_is_no_gated_one_of_ours_is_not_taken_for_one(name):
    function = GATED_STRANGERS[name]
    assert recognized(lambda fc1: function(*fc1.chunk(2, dim=-1)), constants=(7.0, 1.702)) is None


@pytest.mark.parametrize("name", PLAIN_STRANGERS)
def test_what_is_no_plain_one_of_ours_is_not_taken_for_one(name):
    assert recognized(PLAIN_STRANGERS[name], gated=False) is None
