"""Experts in Triton for Hopper with quantized weights: one backend for each format, by number of tokens."""

from moe_core.contract.candidate import AdjustmentRule, MoECandidate
from moe_core.contract.declare import (
    Equals,
    OneOf,
    Reason,
    Requirement,
    divisible,
    dtype_in,
    need,
    no_smart_router,
    quant_in,
    sm_in,
)
from moe_core.contract.vocabulary import CandidateKind, DType, QuantAlgo, TokenLayout
from moe_plugins.triton_moe import ABLE, ACTIVATION, ROW_BYTES, TRITON

WHOLE_BLOCKS = tuple(AdjustmentRule(fact=fact, multiple=128) for fact in ("hidden_size", "intermediate_size_per_tp"))
"""Rows of weights are padded to whole blocks."""
PART_OF_A_BLOCK = AdjustmentRule(kind="sub_block", fact="intermediate_size_per_tp", multiple=128)
"""The first and the last block of a share may be part of one: before a first, neurons of nothing fill it up."""


def _groups(*sizes: int) -> Requirement:
    """The elements that may share a scale."""
    test = Equals(value=sizes[0]) if len(sizes) == 1 else OneOf(values=sizes)
    return need(Reason.QUANT_UNSUPPORTED, "quant_group_size", test)


def _experts(
    quant: QuantAlgo,
    title: str,
    factory: str,
    *others: Requirement,
    unit: int,
    tolerance: float,
    layout: str,
    adjustments: tuple[AdjustmentRule, ...] = (),
    quantizes_activations: bool = False,
) -> MoECandidate:
    return MoECandidate(
        identity=f"moe_core.triton.experts.{quant.lower()}",
        kind=CandidateKind.BACKEND,
        family="TRITON",
        title=title,
        priority=300,
        factory=f"moe_plugins.triton_moe.quant_experts:{factory}",
        requirements=(
            sm_in(90),
            quant_in(quant),
            dtype_in(DType.BFLOAT16, DType.FLOAT16),
            TRITON,
            divisible("hidden_size", unit, hint=ROW_BYTES),
            divisible("intermediate_size_per_tp", unit, hint=ROW_BYTES),
            *others,
            no_smart_router(),
        ),
        layouts=tuple(TokenLayout),
        capabilities=ABLE,
        activation=ACTIVATION,
        prepared_layout=layout,
        adjustments=adjustments,
        tolerance=tolerance,
        quantizes_activations=quantizes_activations,
    )


def _fp8(
    quant: QuantAlgo, title: str, *others: Requirement, adjustments: tuple[AdjustmentRule, ...] = WHOLE_BLOCKS
) -> MoECandidate:
    # To round tokens and the activation to e4m3 changes results by 0.033 to 0.055, most where a clamp is tight.
    return _experts(
        quant, title, "fp8", *others, unit=16, tolerance=6e-2, layout="e4m3_blocks_fc1_halves",
        adjustments=adjustments, quantizes_activations=True,
    )  # fmt: skip


def _quads(quant: QuantAlgo, title: str, *others: Requirement) -> MoECandidate:
    return _experts(
        quant, title, "quads", *others, unit=16, tolerance=6e-2, layout="e4m3_words_fc1_halves",
        adjustments=WHOLE_BLOCKS, quantizes_activations=True,
    )  # fmt: skip


def _words(quant: QuantAlgo, title: str, *others: Requirement, tolerance: float = 5e-3) -> MoECandidate:
    return _experts(
        quant, title, "words", *others, unit=8, tolerance=tolerance, layout="words_fc1_halves",
        adjustments=WHOLE_BLOCKS,
    )  # fmt: skip


def _int4(quant: QuantAlgo, title: str, *others: Requirement) -> MoECandidate:
    # Scales are rounded to the type of the activations, which no other format's are.
    return _words(quant, title, *others, tolerance=8e-3)


CANDIDATES = (
    _fp8(
        QuantAlgo.FP8_BLOCK_SCALES,
        "Triton experts, e4m3 in 128 x 128 blocks, tokens in groups of 128",
        _groups(128),
        adjustments=(*WHOLE_BLOCKS, PART_OF_A_BLOCK),
    ),
    _fp8(QuantAlgo.FP8, "Triton experts, e4m3 with a scale per matrix, tokens scaled as calibrated or as they come"),
    _fp8(QuantAlgo.FP8_PER_CHANNEL_PER_TOKEN, "Triton experts, e4m3 with a scale per row, tokens scaled as they come"),
    _words(QuantAlgo.W4A16_MXFP4, "Triton experts, MXFP4 weights and 16-bit activations", _groups(32)),
    _quads(QuantAlgo.W4A8_MXFP4_FP8, "Triton experts, MXFP4 weights, tokens in e4m3 scaled as they come", _groups(32)),
    _words(QuantAlgo.NVFP4, "Triton experts, NVFP4 weights (activations stay 16-bit)", _groups(16)),
    _words(QuantAlgo.W4A16_NVFP4, "Triton experts, NVFP4 weights without input scales", _groups(16)),
    _int4(QuantAlgo.W4A16_AWQ, "Triton experts, int4 weights in groups, with zero points", _groups(32, 64, 128)),
    _int4(QuantAlgo.W4A16_GPTQ, "Triton experts, int4 weights in groups", _groups(32, 64, 128)),
    _int4(QuantAlgo.W4A16, "Triton experts, int4 weights with a scale per row"),
    _words(QuantAlgo.W8A16, "Triton experts, int8 weights with a scale per row"),
)

TUNING = "moe_plugins.triton_moe.choice:experts_tuning"
"""What says how each of them would run."""
