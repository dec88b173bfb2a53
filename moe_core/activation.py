"""Activations between the two expert projections, and the one place where names become kernel registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

import torch
from torch.nn import functional as F

from moe_core.contract.candidate import MoEActivationSupport
from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import ActivationType

CONSTANTS: Final = ("alpha", "beta", "clamp")

_REQUIRED: Final[Mapping[ActivationType, tuple[str, ...]]] = MappingProxyType(
    {ActivationType.SWIGLU_BIAS: ("alpha", "beta"), ActivationType.SITU: ("alpha", "beta")}
)
_CLAMPED: Final = frozenset({ActivationType.SWIGLU, ActivationType.SWIGLU_BIAS})


@dataclass(frozen=True)
class Activation:
    """A kind with its constants, which cannot disagree: raises ``ValueError`` with every contradiction.

    SwigluBias: `alpha` scales the gate inside the sigmoid, `beta` is added to the up half. SiTu: `alpha` is the soft
    cap of the gate, `beta` that of the up half. `clamp` limits the gate from above and the up half on both sides.
    """

    kind: ActivationType
    alpha: float | None = None
    beta: float | None = None
    clamp: float | None = None
    clamp_after_silu: bool = False
    """The clamp limits ``silu(gate)`` instead of the gate."""

    def __post_init__(self) -> None:
        required = _REQUIRED.get(self.kind, ())
        allowed = (*required, "clamp") if self.kind in _CLAMPED else required
        positive = CONSTANTS if self.kind is ActivationType.SITU else ("clamp",)
        values = {name: getattr(self, name) for name in self.constants}
        errors = [f"{self.kind} needs {name}" for name in required if name not in values]
        errors += [f"{self.kind} takes no {name}" for name in values if name not in allowed]
        # Kernels encode "no clamp" as a number that is not positive; NaN is not positive either.
        errors += [f"{name} must be > 0, got {v}" for name, v in values.items() if name in positive and not v > 0]
        if self.clamp_after_silu and (self.kind is not ActivationType.SWIGLU or self.clamp is None):
            errors.append(f"clamp_after_silu needs {ActivationType.SWIGLU} with a clamp")
        if errors:
            raise ValueError("; ".join(errors))

    @classmethod
    def of(cls, problem: MoEProblem) -> Activation:
        """The activation of `problem`. Raises ``ValueError`` when its kind or a constant is unknown."""
        if problem.activation is None or problem.activation_constants is None:
            raise ValueError("the activation or its constants are unknown; give them in the problem")
        unknown = [c.name for c in problem.activation_constants if c.value is None]
        if unknown:
            raise ValueError(f"the value of {', '.join(unknown)} is unknown; give it in the problem")
        return cls(
            kind=problem.activation,
            alpha=problem.constant("alpha"),
            beta=problem.constant("beta"),
            clamp=problem.constant("clamp"),
            clamp_after_silu=bool(problem.clamp_after_silu),
        )

    @property
    def constants(self) -> tuple[str, ...]:
        """Names of the constants that are set."""
        return tuple(name for name in CONSTANTS if getattr(self, name) is not None)

    def __call__(self, gate: torch.Tensor, up: torch.Tensor | None = None) -> torch.Tensor:
        """The activation of FC1's halves (after its bias), computed and returned in their element type.

        A kind that is not gated takes FC1's only output as `gate`.
        """
        if (up is not None) != self.kind.is_gated:
            raise ValueError(f"{self.kind} is {'' if self.kind.is_gated else 'not '}gated: give up exactly when it is")
        if up is None:
            return _PLAIN[self.kind](gate)
        if self.clamp is not None:
            up = up.clamp(-self.clamp, self.clamp)
            gate = gate if self.clamp_after_silu else gate.clamp(max=self.clamp)
        if self.clamp_after_silu:
            return F.silu(gate).clamp(max=self.clamp) * up
        return _GATED[self.kind](gate, up, *self._alpha_beta())

    def _alpha_beta(self) -> tuple[float, float]:
        return 1.0 if self.alpha is None else self.alpha, 0.0 if self.beta is None else self.beta


def _softcap(x: torch.Tensor, cap: float) -> torch.Tensor:
    return cap * torch.tanh(x / cap)


def _swiglu(gate: torch.Tensor, up: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    return F.silu(gate) * up


def _swiglu_bias(gate: torch.Tensor, up: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    return gate * torch.sigmoid(alpha * gate) * (up + beta)


def _geglu(approximate: str, gate: torch.Tensor, up: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    return F.gelu(gate, approximate=approximate) * up


def _situ(gate: torch.Tensor, up: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    # The sigmoid sees the gate without its cap.
    return _softcap(gate, alpha) * torch.sigmoid(gate) * _softcap(up, beta)


_PLAIN: Final[Mapping[ActivationType, Callable[[torch.Tensor], torch.Tensor]]] = MappingProxyType(
    {
        ActivationType.IDENTITY: lambda x: x,
        ActivationType.GELU: F.gelu,
        ActivationType.RELU: F.relu,
        ActivationType.SILU: F.silu,
        ActivationType.RELU2: lambda x: F.relu(x).square(),
    }
)
_GATED: Final[Mapping[ActivationType, Callable[[torch.Tensor, torch.Tensor, float, float], torch.Tensor]]] = (
    MappingProxyType(
        {
            ActivationType.SWIGLU: _swiglu,
            ActivationType.SWIGLU_BIAS: _swiglu_bias,
            ActivationType.GEGLU: partial(_geglu, "none"),
            ActivationType.GEGLU_TANH: partial(_geglu, "tanh"),
            ActivationType.SITU: _situ,
        }
    )
)


class Registers(NamedTuple):
    """What a kernel is handed: scalars, or float32 ``[num_local_experts]`` where it takes one value per expert."""

    kind: ActivationType
    alpha: float | torch.Tensor | None
    beta: float | torch.Tensor | None
    clamp: float | torch.Tensor | None


def materialize(
    activation: Activation, support: MoEActivationSupport, num_local_experts: int, device: torch.device
) -> Registers:
    """The registers of `activation` for kernels that declare `support`; nothing is ever dropped.

    Raises ``ValueError`` with all that the kernels do not execute.
    """
    errors = []
    if activation.kind not in support.kinds:
        errors.append(f"activation {activation.kind}; supported are {', '.join(sorted(support.kinds))}")
    errors += [f"constant {name}" for name in activation.constants if name not in support.constants]
    if activation.clamp_after_silu and not support.clamp_after_silu:
        errors.append("clamp_after_silu")
    if errors:
        raise ValueError(f"the kernels do not execute {'; '.join(errors)}")

    def shaped(value: float | None) -> float | torch.Tensor | None:
        if value is None or not support.per_expert:
            return value
        return torch.full((num_local_experts,), value, dtype=torch.float32, device=device)

    clamp = support.clamp_when_absent if activation.clamp is None else activation.clamp
    return Registers(activation.kind, shaped(activation.alpha), shaped(activation.beta), shaped(clamp))
