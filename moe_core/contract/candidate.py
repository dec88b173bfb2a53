"""What a plugin declares: identity, limits and abilities of one implementation, as data."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from moe_core.contract.base import Frozen
from moe_core.contract.requirement import Requirement
from moe_core.contract.vocabulary import (
    ActivationType,
    CandidateKind,
    DType,
    QuantAlgo,
    RoutingSplit,
    SchedulerKind,
    TokenLayout,
)

CONTRACT_VERSION = 1
"""Version of the contract between moe_core and plugins."""

SEGMENT = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")
FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class MoEActivationSupport(Frozen):
    """What a backend's kernels really execute."""

    kinds: tuple[ActivationType, ...]
    constants: tuple[Literal["alpha", "beta", "clamp"], ...] = ()
    """The activation constants that the kernels take; a constant that is set and not taken is a refusal."""
    per_expert: bool = False
    """Constants may differ per expert; otherwise one value serves all."""
    clamp_when_absent: float | None = None
    """Value that encodes "no clamp" in the kernel, where a clamp is taken."""
    clamp_after_silu: bool = False

    @model_validator(mode="after")
    def _absent_needs_a_clamp(self) -> Self:
        if self.clamp_when_absent is not None and "clamp" not in self.constants:
            raise ValueError("clamp_when_absent is declared, but clamp is not among the constants")
        return self


class MoEStaticCapability(Frozen):
    """Abilities that the layer asks for. Default: none of them."""

    supports_moe_lora: bool = False
    supports_graph_padding_trim: bool = False
    supports_dwdp: bool = False
    supports_eplb: bool = False
    supports_prefill_rebalance: bool = False
    supports_expert_bias: bool = False
    supports_apply_router_weight_on_input: bool = False
    supports_deep_ep_direct_metadata: bool = False
    supports_non_divisible_ep: bool = False
    """Takes a ceil/floor partition when experts do not divide over the EP ranks."""
    supports_uneven_tp: bool = False
    """Takes a last MoE-TP shard that is narrower than the others."""
    supports_cuda_graph: bool = True
    batch_invariant: bool = False
    deterministic: bool = True
    needs_jit: bool = False
    """Compiles kernels at run time."""
    reloadable: bool = True
    """Prepared weights can be loaded a second time."""


class MoEInputRequirement(Frozen):
    """What the scheduler must hand over; never a selection filter."""

    routing_scales_dtype: DType | None = None
    requires_run_moe_workspace: bool = False
    requires_sanitized_expert_ids: bool = False
    onesided_workspace_dtype: DType | None = None


class AdjustmentRule(Frozen):
    """A declared way to take sizes that are no multiple of `multiple`: pad them, or cut scale blocks.

    ``pad``: the size is raised to the next multiple. ``sub_block``: a shard narrower than the block is taken as it is.
    """

    kind: Literal["pad", "sub_block"] = "pad"
    fact: str
    multiple: Annotated[int, Field(gt=0)]


class MoECandidate(Frozen):
    """One implementation: a backend, a communication strategy or a routing kernel."""

    contract_version: int = CONTRACT_VERSION
    identity: str
    """``provider.technique.kernel.quant``, lower case, unique."""
    kind: CandidateKind
    family: str
    """The legacy literal (CUTLASS, TRTLLM, VANILLA …); for a strategy, its forced-method name."""
    title: str
    """One line for people."""
    priority: int = 0
    """Higher is preferred. Our own candidates are above 0."""
    upstream: bool = False
    """A row of TensorRT-LLM's own catalog."""
    factory: str | None = None
    """``package.module:name`` of what binds it; ``None``: declared, but no adapter exists yet."""

    requirements: tuple[Requirement, ...] = ()
    load_requirements: tuple[Requirement, ...] = ()
    """Limits that bite when the layer is built or its weights are laid out: reported after the activation gate."""
    capabilities: MoEStaticCapability = MoEStaticCapability()
    input_requirement: MoEInputRequirement = MoEInputRequirement()
    activation: MoEActivationSupport | None = None
    adjustments: tuple[AdjustmentRule, ...] = ()
    tolerance: Annotated[float, Field(gt=0)] | None = None
    """Largest relative Frobenius error against the float32 twin, with bfloat16 activations."""
    quantizes_activations: bool = False
    """Backend: activations are rounded to fewer bits than `dtype_act` inside; a finer one lowers no tolerance."""

    scheduler_kind: SchedulerKind = SchedulerKind.EXTERNAL_COMM
    layouts: tuple[TokenLayout, ...] = (TokenLayout.TOKEN_MAJOR,)
    """Backend: row orders that it takes. Strategy: the row orders that it delivers."""
    routing_split: RoutingSplit = RoutingSplit.SEPARATED
    """Backend: who routes. IN_KERNEL wants logits, which no token exchange delivers."""
    weight_layouts: tuple[str, ...] = ("checkpoint",)
    """Backend: weight layouts that ``prepare`` takes."""
    prepared_layout: str | None = None
    """Backend: name of the layout that ``prepare`` makes. Backends of one layer with equal names run from one copy, and
    must be able to: ``moe_core.execution.SharesPrepared``. ``None``: a layout of its own."""
    post_quant: tuple[QuantAlgo, ...] | None = None
    """Strategy: formats that it can move quantized; ``None``: all. Others are quantized after dispatch."""
    finalize_before_combine: bool = True
    """Strategy: combine is an unweighted sum, so experts weigh and reduce first."""
    max_chunks: Annotated[int, Field(gt=0)] | None = None
    """Strategy: most chunks of a forward that it serves."""
    bounded_tokens: bool = False
    """Strategy: its buffers hold ``MoEDeployment.dispatch_capacity`` tokens per rank and no more."""

    @model_validator(mode="after")
    def _well_formed(self) -> Self:
        errors: list[str] = []
        segments = self.identity.split(".")
        if len(segments) != 4 or not all(SEGMENT.fullmatch(s) for s in segments):
            errors.append(
                f"identity {self.identity!r} must be provider.technique.kernel.quant: four segments of lower-case "
                "letters, digits and single underscores"
            )
        elif segments[3] not in _QUANT_SEGMENTS:
            errors.append(f"the last segment of {self.identity!r} must be a quant algorithm in lower case, or 'any'")
        if self.factory is not None and not FACTORY.fullmatch(self.factory):
            errors.append(f"factory {self.factory!r} must be 'package.module:name'")
        if self.kind is CandidateKind.BACKEND and self.activation is None:
            errors.append("a backend must declare its activation support")
        if not self.family or self.family != self.family.upper():
            errors.append(f"family {self.family!r} must be upper case and not empty")
        if errors:
            raise ValueError("; ".join(errors))
        return self

    @property
    def provider(self) -> str:
        """First segment of the identity."""
        return self.identity.partition(".")[0]

    def __str__(self) -> str:
        return self.identity


_QUANT_SEGMENTS = {"any", *(q.value.lower() for q in QuantAlgo)}
