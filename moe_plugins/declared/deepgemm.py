"""DeepGEMM with the token exchange left to others: TensorRT-LLM's masked form, and the package's contiguous form."""

from __future__ import annotations

from moe_core.contract.candidate import MoEActivationSupport, MoECandidate, MoEInputRequirement, MoEStaticCapability
from moe_core.contract.declare import (
    Installed,
    NoneOf,
    Reason,
    activation_in,
    is_,
    isnt,
    need,
    one_of,
    package,
    quant_in,
    sm_in,
)
from moe_core.contract.vocabulary import ActivationType, DType, QuantAlgo
from moe_plugins.declared.limits import (
    BF16,
    FLOAT_SCALES,
    HALF_OR_FLOAT,
    NO_GPTOSS,
    SM100F,
    group_size,
    hidden_multiple,
    shard_multiple,
)
from moe_plugins.declared.row import EITHER_LAYOUT, Requirements, backend

BLOCKS_OF_128: Requirements = (
    shard_multiple(128),
    hidden_multiple(128),
    group_size(QuantAlgo.FP8_BLOCK_SCALES, 128),
)

MASKED = backend(
    "deepgemm.cuda.grouped_gemm.fp8_block_scales",
    "DEEPGEMM",
    "DeepGEMM's masked grouped GEMM as bundled by TensorRT-LLM, FP8 block scales",
    (
        sm_in(*SM100F),
        HALF_OR_FLOAT,
        # Upstream refuses the unquantized here, and every other format after the activation.
        need(Reason.QUANT_UNSUPPORTED, "quant", NoneOf(values=(QuantAlgo.NONE,))),
        NO_GPTOSS,
        activation_in(ActivationType.SWIGLU),
        quant_in(QuantAlgo.FP8_BLOCK_SCALES, when=(isnt("quant", QuantAlgo.NONE),)),
    ),
    activation=MoEActivationSupport(kinds=(ActivationType.SWIGLU,), constants=("clamp",)),
    load=BLOCKS_OF_128,
    able=MoEStaticCapability(supports_eplb=True),
    inputs=MoEInputRequirement(routing_scales_dtype=DType.FLOAT32, requires_run_moe_workspace=True),
    layouts=EITHER_LAYOUT,
)


def _contiguous(quant: QuantAlgo, title: str, load: Requirements) -> MoECandidate:
    return backend(
        f"deepgemm.cuda.contiguous_gemm.{quant.lower()}",
        "DEEPGEMM",
        title,
        (
            quant_in(quant),
            # As built: SM120 and SM121 are other instructions, whatever their number suggests.
            sm_in(90, 100, 103),
            BF16,
            package(
                "deep_gemm", at_least="2.1", hint="install DeepGEMM from its repository; PyPI's deep-gemm is another"
            ),
            need(Reason.DEP_MISSING, "cuda_version", Installed(at_least="12.3"), when=(is_("sm", 90),)),
            need(Reason.DEP_MISSING, "cuda_version", Installed(at_least="12.9"), when=(one_of("sm", 100, 103),)),
        ),
        upstream=False,
        activation=MoEActivationSupport(kinds=(ActivationType.SWIGLU,), constants=("clamp",)),
        load=load,
        able=MoEStaticCapability(supports_eplb=True, needs_jit=True),
        inputs=FLOAT_SCALES,
    )


CANDIDATES = (
    MASKED,
    _contiguous(QuantAlgo.FP8_BLOCK_SCALES, "DeepGEMM's contiguous grouped GEMM, FP8 block scales", BLOCKS_OF_128),
    _contiguous(
        QuantAlgo.NONE,
        "DeepGEMM's contiguous grouped GEMM, unquantized",
        (shard_multiple(64), hidden_multiple(64)),
    ),
)
