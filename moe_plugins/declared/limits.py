"""Limits that several rows share, each built once."""

from __future__ import annotations

from typing import Final

from moe_core.contract.candidate import AdjustmentRule, MoEInputRequirement
from moe_core.contract.declare import (
    Conditions,
    Equals,
    MultipleOf,
    NoneOf,
    Reason,
    Requirement,
    SubsetOf,
    divisible,
    dtype_in,
    feature,
    is_,
    need,
    no_eplb,
    no_gptoss_style,
    no_smart_router,
)
from moe_core.contract.requirement import Condition
from moe_core.contract.vocabulary import DType, QuantAlgo

SM100F: Final = (100, 103, 107)
"""The SM100 family: the one place that says which members it has."""
RUBIN: Final = 107

BF16 = dtype_in(DType.BFLOAT16)
HALF = dtype_in(DType.FLOAT16, DType.BFLOAT16)
HALF_OR_FLOAT = dtype_in(DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)

NO_GPTOSS = no_gptoss_style()
NO_BIAS = need(Reason.ACTIVATION_UNSUPPORTED, "bias", Equals(value=False))
NO_CONSTANTS = need(Reason.ACTIVATION_UNSUPPORTED, "activation_constant_names", SubsetOf(values=()))
NO_EPLB = no_eplb()
NO_SMART_ROUTER = no_smart_router()
ONE_EP_RANK = need(Reason.TOPOLOGY_UNSUPPORTED, "ep_size", Equals(value=1), "use ep_size 1, with MoE TP instead")
NO_MOE_TP = need(Reason.TOPOLOGY_UNSUPPORTED, "tp_size", Equals(value=1), "use expert parallelism alone: tp_size 1")

ON_RUBIN: Conditions = (is_("sm", RUBIN),)
FUSED_FINALIZE = need(
    Reason.FINALIZE_FUSION_REQUIRED, "fused_finalize_enabled", Equals(value=True), "leave finalize fusion on"
)
FUSED_FINALIZE_ON_RUBIN = need(
    Reason.FINALIZE_FUSION_REQUIRED,
    "fused_finalize_enabled",
    Equals(value=True),
    "leave finalize fusion on",
    when=ON_RUBIN,
)
RUBIN_KERNELS = feature("nvidia_cutlass_dsl.rubin")
RUBIN_KERNELS_ON_RUBIN = feature("nvidia_cutlass_dsl.rubin", when=ON_RUBIN)

FC1_ROWS = divisible(
    "fc1_rows_per_tp",
    128,
    when=(
        is_("quant", QuantAlgo.NVFP4),
        is_("is_gated", True),
        # A shard that is not whole is another limit's to report.
        Condition(fact="intermediate_size", test=MultipleOf(times="tp_size")),
    ),
    hint="use a tp_size that divides 2 x intermediate_size / 128, or EP",
)
"""Up and gate scales are swizzled jointly in tiles of 128 rows, so a gated NVFP4 FC1 must end on one."""

TOP_1_WHEN_WEIGHTED_ON_INPUT = need(
    Reason.ROUTING_UNSUPPORTED,
    "top_k",
    Equals(value=1),
    "router weights can go on the input of a single expert only",
    when=(is_("apply_router_weight_on_input", True),),
)

FLOAT_SCALES = MoEInputRequirement(routing_scales_dtype=DType.FLOAT32)


def shard_multiple(multiple: int, *, when: Conditions = ()) -> Requirement:
    """The intermediate size of one MoE-TP shard must be a multiple."""
    return divisible(
        "intermediate_size_per_tp", multiple, when=when, hint="use a smaller tp_size, or EP, which keeps it whole"
    )


def hidden_multiple(multiple: int, *, when: Conditions = ()) -> Requirement:
    """The width of the experts must be a multiple."""
    return divisible("hidden_size", multiple, when=when)


def group_size(quant: QuantAlgo, size: int) -> Requirement:
    """The one number of elements per scale that the kernel takes of a format that could have others."""
    return need(Reason.QUANT_UNSUPPORTED, "quant_group_size", Equals(value=size), when=(is_("quant", quant),))


def without_kinds(*kinds: str) -> Requirement:
    """Every activation but these."""
    return need(Reason.ACTIVATION_UNSUPPORTED, "activation", NoneOf(values=kinds))


def padded(*, shard: int, hidden: int | None = None) -> tuple[AdjustmentRule, ...]:
    """Shard, and width, are padded to a multiple when weights are laid out."""
    rules = (AdjustmentRule(fact="intermediate_size_per_tp", multiple=shard),)
    return rules if hidden is None else (*rules, AdjustmentRule(fact="hidden_size", multiple=hidden))
