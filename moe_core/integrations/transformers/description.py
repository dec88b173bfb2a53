"""An experts module of transformers, described from what it is made of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from moe_core.contract.problem import ActivationConstant, MoEProblem
from moe_core.contract.vocabulary import DType, QuantAlgo, RoutingMethodType
from moe_core.fused_weights import FusedExpertWeights
from moe_core.integrations.transformers.errors import UnsupportedExpertsError
from moe_core.integrations.transformers.recognition import Recognized, recognize

SWITCHES = frozenset({"has_gate", "has_bias", "has_post_expert_norm", "is_transposed", "is_concatenated"})
"""What a module may say of itself; one that says something else needs something else."""
DTYPES = {getattr(torch, d.value): d for d in (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)}


@dataclass(frozen=True)
class ExpertsLayout:
    """Names and memory order of an experts module's parameters."""

    gated: bool
    transposed: bool
    """Matrices are ``[E, in, out]``."""
    biased: bool

    @classmethod
    def of(cls, module: nn.Module) -> ExpertsLayout:
        """What `module` says of itself."""
        return cls(
            gated=getattr(module, "has_gate", True),
            transposed=getattr(module, "is_transposed", False),
            biased=getattr(module, "has_bias", False),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters: FC1, FC2 and, where there are biases, theirs."""
        fc1 = "gate_up_proj" if self.gated else "up_proj"
        return (fc1, "down_proj", f"{fc1}_bias", "down_proj_bias") if self.biased else (fc1, "down_proj")

    def tensors(self, module: nn.Module) -> tuple[torch.Tensor, ...]:
        """The tensors of :attr:`names`, as `module` has them now."""
        return tuple(getattr(module, name) for name in self.names)

    def weights(self, tensors: tuple[torch.Tensor, ...], interleaved: bool) -> FusedExpertWeights:
        """The tensors of :attr:`names` as weights: views."""
        fc1, fc2 = (t.transpose(1, 2) for t in tensors[:2]) if self.transposed else tensors[:2]
        fc1_bias, fc2_bias = tensors[2:] if self.biased else (None, None)
        return FusedExpertWeights(
            fc1_EGH=fc1, w2_EHI=fc2, fc1_bias_EG=fc1_bias, b2_EH=fc2_bias, gated=self.gated, interleaved=interleaved
        )


@dataclass(frozen=True)
class ExpertsDescription:
    """What an experts module computes, and how its parameters are laid out."""

    problem: MoEProblem
    layout: ExpertsLayout
    interleaved: bool


def describe(module: nn.Module, top_k: int | None) -> ExpertsDescription:
    """The problem that `module` computes, with `top_k` experts per token; ``None``: it is not known yet.

    Sizes are those of the parameters that are here, so under expert or tensor parallelism of transformers the problem
    is this rank's share. Raises :class:`UnsupportedExpertsError` with everything that we lack.
    """
    layout = ExpertsLayout.of(module)
    reasons = [*_unknown_needs(module, layout), *_unusable(module, layout)]
    if reasons:
        raise UnsupportedExpertsError(module, reasons)
    weights = layout.weights(layout.tensors(module), interleaved=False)
    E, G, H = weights.fc1_EGH.shape
    I = G // 2 if layout.gated else G  # noqa: E741 - shape letter
    found = _recognize(module, layout, weights, I)
    if weights.w2_EHI.shape != (E, H, I):
        raise UnsupportedExpertsError(
            module, [f"down_proj: found {list(weights.w2_EHI.shape)} as [E, H, I], needed {[E, H, I]}"]
        )
    activation = found.activation
    problem = MoEProblem(
        quant=QuantAlgo.NONE,
        dtype_act=DTYPES[weights.fc1_EGH.dtype],
        hidden_size=H,
        intermediate_size=I,
        num_experts=E,
        # A rank's share may be fewer experts than a token has; how many of its ids are here is then unknown.
        top_k=None if top_k is None or top_k > E else top_k,
        activation=activation.kind,
        activation_constants=tuple(
            ActivationConstant.model_validate({"name": name, "value": getattr(activation, name)})
            for name in activation.constants
        ),
        clamp_after_silu=activation.clamp_after_silu,
        bias=layout.biased,
        routing=RoutingMethodType.UNSPECIFIED,  # the model's own router has chosen
    )
    return ExpertsDescription(problem, layout, found.interleaved)


def _unknown_needs(module: nn.Module, layout: ExpertsLayout) -> Iterator[str]:
    for name, value in vars(module).items():
        if value is True and name.startswith(("has_", "is_")) and name not in SWITCHES:
            yield f"{name}=True: found something that its experts need, and nothing here knows"
    own = [name for name, _ in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))]
    for name in own:
        if name not in layout.names:
            yield f"{name}: found a tensor beside {', '.join(layout.names)}, needed no other"


def _unusable(module: nn.Module, layout: ExpertsLayout) -> Iterator[str]:
    for name in layout.names:
        tensor: Any = getattr(module, name, None)
        if type(tensor) not in (torch.Tensor, nn.Parameter):
            yield f"{name}: found {type(tensor).__name__}, needed a plain tensor"
        elif tensor.dtype not in DTYPES:
            yield f"{name}: found {tensor.dtype}, needed {', '.join(map(str, DTYPES))}"
        elif tensor.device.type not in ("cpu", "cuda"):
            yield f"{name}: found on {tensor.device}, needed on cpu or cuda"
        elif tensor.dim() != (2 if name.endswith("_bias") else 3):
            yield f"{name}: found {list(tensor.shape)}, needed one {'row' if '_bias' in name else 'matrix'} per expert"


def _recognize(module: nn.Module, layout: ExpertsLayout, weights: FusedExpertWeights, width: int) -> Recognized:
    numbers = list(_numbers(module))
    sizes = {*weights.fc1_EGH.shape, width}
    found = recognize(
        module._apply_gate if layout.gated else module.act_fn,  # type: ignore[arg-type]  # a module's attribute may be anything
        gated=layout.gated,
        width=width,
        constants=sorted(numbers, key=lambda number: number in sizes),
        device=weights.fc1_EGH.device,
    )
    if found is None:
        method = "_apply_gate" if layout.gated else "act_fn"
        raise UnsupportedExpertsError(module, [f"{method}: found an activation that is none of ours at every point"])
    return found


def _numbers(module: nn.Module) -> Iterator[float]:
    """Numbers that a module and what is in it hold: proposals for the constants of its activation."""
    for part in module.modules():
        for value in vars(part).values():
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                yield value
