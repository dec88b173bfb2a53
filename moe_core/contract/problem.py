"""What is computed: one MoE layer, independent of machine and rank."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from moe_core.contract.base import SCHEMA_VERSION, Frozen
from moe_core.contract.vocabulary import ActivationType, DType, GroupScore, QuantAlgo, RoutingMethodType

Size = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
ConstantName = Literal["alpha", "beta", "clamp"]


class ActivationConstant(Frozen):
    """A non-default constant of the activation.

    ``alpha`` and ``beta`` are, for SwigluBias, the gate's sigmoid scale and the linear offset; for SiTu, the gate
    and linear soft caps. ``clamp`` is the limit. ``value`` is ``None`` when it is known to exist but not its value.
    """

    name: ConstantName
    value: float | None = None


class MoEProblem(Frozen):
    """What has to be computed, with full (unsharded) sizes. ``None`` is unknown: gates abstain on it.

    Sizes are element counts. `hidden_size` is the experts' own width (in a latent MoE, the latent width);
    `model_hidden_size` is the width of the residual stream beside it, where the router usually looks.
    """

    schema_version: Literal[1] = SCHEMA_VERSION

    quant: QuantAlgo | None = None
    """Weight/activation format, canonical (``canonical_quant``); ``QuantAlgo.NONE`` when unquantized."""
    quant_group_size: Size | None = None
    """Elements along the contraction dimension that share one scale (16 NVFP4, 32 MX, 128 FP8 block, AWQ's group)."""
    dtype_act: DType | None = DType.BFLOAT16
    """Element type of activations before quantization."""

    hidden_size: Size | None = None
    model_hidden_size: Size | None = None
    intermediate_size: Size | None = None
    """Width of ONE of the expert's up projections, before tensor parallelism."""
    num_experts: Size | None = None
    top_k: Size | None = None

    activation: ActivationType | None = ActivationType.SWIGLU
    activation_constants: tuple[ActivationConstant, ...] | None = ()
    """The constants that are set, sorted by name."""
    clamp_after_silu: bool | None = False
    """The Step-3 form ``min(silu(gate), clamp) * clip(up, -clamp, clamp)``."""
    bias: bool | None = None
    """Whether the expert projections carry a bias."""
    swiglu_gptoss_style: bool | None = None
    """Inferred when not given: activation is SwigluBias, or experts have a bias."""

    routing: RoutingMethodType | None = None
    num_expert_groups: Size | None = None
    """Groups of grouped top-k (``n_group``); 1 when experts are not grouped."""
    topk_group: Size | None = None
    group_score: GroupScore | None = None
    """How a group is scored; meaningful when ``num_expert_groups > 1``."""
    renormalize: bool | None = None
    """Whether the chosen weights are divided by their sum."""
    routed_scaling_factor: float | None = None
    routing_bias: bool | None = None
    """Whether a correction bias takes part in the choice (never in the weights)."""
    hashed_routing: bool | None = False
    """DeepSeek-V4: ids come from a table indexed by token id."""
    apply_router_weight_on_input: bool | None = False

    num_shared_experts: Count | None = None
    shared_intermediate_size: Size | None = None
    """Total width of the shared expert(s); ``None`` when there is none or it is unknown."""
    shared_expert_gate: bool | None = False
    """Whether a sigmoid gate scales the shared expert (Qwen2-MoE)."""

    weight_layout: str | None = "checkpoint"
    """``checkpoint``, or the name of the layout that the weights were already re-ordered into."""
    num_attention_heads: Size | None = None
    """Only read by the cross-model check of attention tensor parallelism."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        errors: list[str] = []
        if _exceeds(self.top_k, self.num_experts):
            errors.append(f"top_k is {self.top_k}, more than num_experts {self.num_experts}")
        groups = self.num_expert_groups
        if groups is not None and self.num_experts is not None and self.num_experts % groups:
            errors.append(f"num_experts {self.num_experts} is not a multiple of num_expert_groups {groups}")
        if _exceeds(self.topk_group, groups):
            errors.append(f"topk_group is {self.topk_group}, more than num_expert_groups {groups}")
        if groups and self.num_experts and self.topk_group and self.top_k and groups <= self.num_experts:
            reachable = self.topk_group * (self.num_experts // groups)
            if self.top_k > reachable:
                errors.append(f"top_k is {self.top_k}, but {self.topk_group} groups hold only {reachable} experts")
        names = self.activation_constant_names
        if names is not None and len(set(names)) != len(names):
            errors.append(f"activation_constants names a constant twice: {', '.join(names)}")
        for constant in self.activation_constants or ():
            if (
                constant.value is not None
                and constant.value <= 0
                and (constant.name == "clamp" or self.activation is ActivationType.SITU)
            ):
                errors.append(f"activation constant {constant.name} must be > 0, got {constant.value}")
        if self.clamp_after_silu and names is not None and "clamp" not in names:
            errors.append("clamp_after_silu needs the activation constant clamp")
        if errors:
            raise ValueError("; ".join(errors))
        self.__dict__.update(
            activation_constants=None
            if self.activation_constants is None
            else tuple(sorted(self.activation_constants, key=lambda c: c.name)),
            swiglu_gptoss_style=self._gptoss_style(),
        )
        return self

    def _gptoss_style(self) -> bool | None:
        if self.swiglu_gptoss_style is not None:
            return self.swiglu_gptoss_style
        if self.activation is ActivationType.SWIGLU_BIAS or self.bias:
            return True
        return None if self.activation is None or self.bias is None else False

    @property
    def activation_constant_names(self) -> tuple[str, ...] | None:
        """Names of the constants that are set, sorted; ``None`` when unknown."""
        if self.activation_constants is None:
            return None
        return tuple(sorted(c.name for c in self.activation_constants))

    def constant(self, name: ConstantName) -> float | None:
        """Value of the activation constant `name`, or ``None`` when it is not set or its value is unknown."""
        return next((c.value for c in self.activation_constants or () if c.name == name), None)

    @property
    def is_gated(self) -> bool | None:
        """Whether FC1 has a gate half."""
        return None if self.activation is None else self.activation.is_gated

    @property
    def is_fully_specified(self) -> bool:
        """Whether the four sizes are known: only then may the problem key a measurement."""
        return None not in (self.hidden_size, self.intermediate_size, self.num_experts, self.top_k)


_CANONICAL = {"NVFP4_AWQ": QuantAlgo.NVFP4, "NVFP4_ARC": QuantAlgo.NVFP4, "NO_QUANT": QuantAlgo.NONE}


def canonical_quant(name: str | None) -> QuantAlgo | None:
    """The format that an upstream QuantAlgo name means; ``None`` for MIXED_PRECISION (it differs per layer).

    Raises ``ValueError`` for a name that is no format.
    """
    if name is None or name.upper() == "MIXED_PRECISION":
        return None
    return _CANONICAL.get(name.upper()) or QuantAlgo(name)


def _exceeds(part: int | None, whole: int | None) -> bool:
    return part is not None and whole is not None and part > whole
