"""Everything that a candidate must pass: its declared limits, and those that follow from its declaration.

Order is TensorRT-LLM's, so that the first reason is upstream's: LoRA, the candidate's own gates, the central
activation gate, then what upstream checks when the layer is built or loaded, then what is ours.
"""

from __future__ import annotations

from functools import lru_cache

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.declare import divisible, is_, need
from moe_core.contract.predicate import AtLeast, AtMost, Equals, MultipleOf, OneOf, SubsetOf
from moe_core.contract.reasons import MoERejectReason as Reason
from moe_core.contract.requirement import Requirement
from moe_core.contract.vocabulary import CandidateKind, FixableBy

NO_LORA = need(Reason.LORA_UNSUPPORTED, "moe_lora_enabled", Equals(value=False), "serve without routed-expert LoRA")
NO_CLAMP_AFTER_SILU = need(Reason.ACTIVATION_UNSUPPORTED, "clamp_after_silu", Equals(value=False))
NO_EPLB = need(Reason.EPLB_UNSUPPORTED, "eplb_enabled", Equals(value=False), "turn EPLB off")
EPLB_NEEDS_EP = need(
    Reason.EPLB_UNSUPPORTED,
    "ep_size",
    AtLeast(value=2),
    "EPLB moves experts between EP ranks: use ep_size > 1",
    when=(is_("eplb_enabled", True),),
    fixable=FixableBy.TOPOLOGY,
)
NO_DWDP = need(Reason.TOPOLOGY_UNSUPPORTED, "dwdp_size", Equals(value=1), "turn DWDP off", fixable=FixableBy.FLAG)
NO_BIAS = need(Reason.BIAS_UNSUPPORTED, "bias", Equals(value=False))
NO_ROUTER_WEIGHT_ON_INPUT = need(Reason.ROUTING_UNSUPPORTED, "apply_router_weight_on_input", Equals(value=False))
EVEN_EP = need(
    Reason.SLOTS_NOT_DIVISIBLE_BY_EP,
    "num_experts",
    MultipleOf(times="ep_size"),
    "use an ep_size that divides the experts, or EPLB with redundant slots",
    when=(is_("eplb_enabled", False),),
)
EVEN_SLOTS = need(
    Reason.SLOTS_NOT_DIVISIBLE_BY_EP,
    "num_slots",
    MultipleOf(times="ep_size"),
    "use a num_slots that is a multiple of ep_size",
    when=(is_("eplb_enabled", True),),
)
EVEN_TP = divisible("intermediate_size", by="tp_size")
NOT_BATCH_INVARIANT = need(
    Reason.NOT_BATCH_INVARIANT, "batch_invariant", Equals(value=False), "allow results that vary with the batch"
)
NO_FULL_GRAPH = need(
    Reason.CUDA_GRAPH_UNSUPPORTED, "cuda_graph", OneOf(values=("none", "piecewise")), "capture piecewise, or not at all"
)
CAN_JIT = need(
    Reason.PATH_NOT_ENABLED,
    "can_jit",
    Equals(value=True),
    "allow run-time compilation, or ship compiled kernels",
    fixable=FixableBy.INSTALL,
)
FITS_IN_MEMORY = need(
    Reason.RESOURCE_EXCEEDED, "memory_needed", AtMost(times="device_memory"), "spread the experts over more ranks"
)


@lru_cache(maxsize=1024)
def gates_of(candidate: MoECandidate) -> tuple[Requirement, ...]:
    """Every requirement of a candidate, in the order in which reasons are reported."""
    if candidate.kind is not CandidateKind.BACKEND:
        return tuple(map(_one, candidate.requirements))
    able = candidate.capabilities
    gates: list[Requirement] = []
    if not able.supports_moe_lora:
        gates.append(NO_LORA)
    gates += candidate.requirements
    if (activation := candidate.activation) is not None:
        gates.append(need(Reason.ACTIVATION_UNSUPPORTED, "activation", OneOf(values=activation.kinds)))
        if not activation.clamp_after_silu:
            gates.append(NO_CLAMP_AFTER_SILU)
        taken = SubsetOf(values=activation.constants)
        gates.append(need(Reason.ACTIVATION_UNSUPPORTED, "activation_constant_names", taken))
    gates.append(EPLB_NEEDS_EP if able.supports_eplb else NO_EPLB)
    if not able.supports_dwdp:
        gates.append(NO_DWDP)
    if not able.supports_expert_bias:
        gates.append(NO_BIAS)
    if not able.supports_apply_router_weight_on_input:
        gates.append(NO_ROUTER_WEIGHT_ON_INPUT)
    if not able.supports_non_divisible_ep:
        gates.append(EVEN_EP)
    gates.append(EVEN_SLOTS)
    if not able.supports_uneven_tp:
        gates.append(EVEN_TP)
    gates += candidate.load_requirements
    layouts = OneOf(values=candidate.weight_layouts)
    gates.append(need(Reason.FORMAT_INCOMPATIBLE, "weight_layout", layouts, "load the checkpoint's own layout"))
    if not able.batch_invariant:
        gates.append(NOT_BATCH_INVARIANT)
    if not able.supports_cuda_graph:
        gates.append(NO_FULL_GRAPH)
    if able.needs_jit:
        gates.append(CAN_JIT)
    gates.append(FITS_IN_MEMORY)
    return tuple(dict.fromkeys(_one(gate) for gate in gates))


@lru_cache(maxsize=4096)
def _one(gate: Requirement) -> Requirement:
    """The same object for equal gates, so that a resolution evaluates each once and compares by identity."""
    return gate
