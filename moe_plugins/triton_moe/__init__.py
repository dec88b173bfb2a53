"""Experts in Triton for Hopper: one backend by number of tokens, and each of its ways by itself."""

from moe_core.contract.candidate import MoEActivationSupport, MoECandidate, MoEStaticCapability
from moe_core.contract.declare import (
    AtMost,
    Reason,
    Requirement,
    divisible,
    dtype_in,
    need,
    no_smart_router,
    package,
    quant_in,
    sm_in,
)
from moe_core.contract.vocabulary import ActivationType, CandidateKind, DType, QuantAlgo, TokenLayout

LAYOUT = "fc1_halves_k_major"
"""Gate rows above up rows, contiguous in the inner dimension: what all of these prepare, and share."""
ROW_BYTES = "the memory engine copies rows of whole 16-byte units"
FEW = "every pair of token and expert reads its weights by itself; experts in order of the map take any number"
GLUON = "Gluon's names move between versions of Triton, and this kernel is written for 3.6"

TRITON = package("triton", at_least="3.6")
ABLE = MoEStaticCapability(
    supports_graph_padding_trim=True,
    supports_expert_bias=True,
    supports_apply_router_weight_on_input=True,
    supports_non_divisible_ep=True,
    needs_jit=True,
)
ACTIVATION = MoEActivationSupport(
    kinds=tuple(ActivationType), constants=("alpha", "beta", "clamp"), clamp_after_silu=True
)


def _experts(
    identity: str, title: str, priority: int, factory: str, triton: Requirement, *others: Requirement
) -> MoECandidate:
    return MoECandidate(
        identity=identity,
        kind=CandidateKind.BACKEND,
        family="TRITON",
        title=title,
        priority=priority,
        factory=f"moe_plugins.triton_moe.experts:{factory}",
        requirements=(
            sm_in(90),
            quant_in(QuantAlgo.NONE),
            dtype_in(DType.BFLOAT16, DType.FLOAT16),
            triton,
            divisible("hidden_size", 8, hint=ROW_BYTES),
            divisible("intermediate_size_per_tp", 8, hint=ROW_BYTES),
            *others,
            no_smart_router(),
        ),
        layouts=tuple(TokenLayout),
        capabilities=ABLE,
        activation=ACTIVATION,
        prepared_layout=LAYOUT,
        tolerance=5e-3,
    )


CANDIDATES = (
    _experts("moe_core.triton.experts.none", "Triton experts, by number of tokens", 300, "any_path", TRITON),
    _experts(
        "moe_core.gluon.grouped.none",
        "many rows per expert: a persistent Gluon kernel",
        240,
        "gluon_only",
        package("triton", at_least="3.6", below="3.7", hint=GLUON),
        divisible("hidden_size", 64, hint="a tile is 64 columns deep"),
    ),
    _experts("moe_core.triton.grouped.none", "many rows per expert: tensor-core tiles", 230, "grouped_only", TRITON),
    _experts("moe_core.triton.swap_ab.none", "few rows per expert: swapped operands", 220, "swap_ab_only", TRITON),
    _experts(
        "moe_core.triton.no_sort.none",
        "few tokens: no map and no tensor cores",
        210,
        "no_sort_only",
        TRITON,
        need(Reason.TOKENS_OVER_CAPACITY, "max_num_tokens", AtMost(value=64), FEW),
    ),
)

TUNING = {
    "moe_core.triton.experts.none": "moe_plugins.triton_moe.choice:experts_tuning",
    "moe_core.gluon.grouped.none": "moe_plugins.triton_moe.choice:gluon_tuning",
    "moe_core.triton.grouped.none": "moe_plugins.triton_moe.choice:grouped_tuning",
    "moe_core.triton.swap_ab.none": "moe_plugins.triton_moe.choice:swap_ab_tuning",
    "moe_core.triton.no_sort.none": "moe_plugins.triton_moe.choice:no_sort_tuning",
}
"""What says how each of them would run."""
