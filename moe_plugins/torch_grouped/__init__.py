"""torch's own grouped matrix multiplication over rows sorted by expert."""

from moe_core.contract.candidate import MoEActivationSupport, MoECandidate, MoEStaticCapability
from moe_core.contract.declare import (
    Equals,
    Reason,
    divisible,
    dtype_in,
    is_,
    need,
    no_smart_router,
    one_of,
    package,
    quant_in,
    sm_at_least,
    sm_in,
)
from moe_core.contract.requirement import Requirement
from moe_core.contract.vocabulary import (
    ActivationType,
    CandidateKind,
    CudaGraphMode,
    Device,
    DType,
    QuantAlgo,
    TokenLayout,
)

CUDA = (is_("device", Device.CUDA),)
FULL_GRAPH = (is_("cuda_graph", CudaGraphMode.FULL),)
ROW_BYTES = "torch's grouped multiplication wants rows of whole 16-byte units"
LOOP = "torch falls back to a loop here, which asks the device for the group sizes; capture piecewise, or not at all"


def _whole_units(fact: str) -> tuple[Requirement, ...]:
    narrow = one_of("dtype_act", DType.BFLOAT16, DType.FLOAT16)
    return (
        divisible(fact, 8, when=(narrow,), hint=ROW_BYTES),
        divisible(fact, 4, when=(is_("dtype_act", DType.FLOAT32),), hint=ROW_BYTES),
    )


CANDIDATES = (
    MoECandidate(
        identity="moe_core.torch.grouped_mm.none",
        kind=CandidateKind.BACKEND,
        family="TORCH_GROUPED",
        title="torch.nn.functional.grouped_mm over rows sorted by expert",
        priority=200,
        factory="moe_plugins.torch_grouped.backend:GroupedMM",
        requirements=(
            quant_in(QuantAlgo.NONE),
            dtype_in(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16),
            package("torch", at_least="2.10"),
            sm_at_least(80).evolve(when=CUDA),
            *_whole_units("hidden_size"),
            *_whole_units("intermediate_size_per_tp"),
            # The kernels without a host synchronization, as built since torch 2.10: Hopper and data-centre Blackwell.
            sm_in(90, 100, 103, when=FULL_GRAPH).evolve(reason=Reason.CUDA_GRAPH_UNSUPPORTED, hint=LOOP),
            need(Reason.CUDA_GRAPH_UNSUPPORTED, "dtype_act", Equals(value=DType.BFLOAT16), LOOP, when=FULL_GRAPH),
            no_smart_router(),
        ),
        layouts=tuple(TokenLayout),
        capabilities=MoEStaticCapability(
            supports_graph_padding_trim=True,
            supports_expert_bias=True,
            supports_apply_router_weight_on_input=True,
            supports_non_divisible_ep=True,
        ),
        activation=MoEActivationSupport(
            kinds=tuple(ActivationType), constants=("alpha", "beta", "clamp"), clamp_after_silu=True
        ),
        tolerance=8e-3,
    ),
)
