"""The closed vocabularies of the contract. Values follow TensorRT-LLM where it has the word."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Word(StrEnum):
    """A string enum that is read case-insensitively, by value or by member name."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if isinstance(value, str):
            wanted = value.casefold()
            for member in cls:
                if wanted in (member.value.casefold(), member.name.casefold()):
                    return member
        return None


class QuantAlgo(Word):
    """Weight/activation format of the routed experts. ``NONE`` is unquantized."""

    NONE = "NONE"
    FP8 = "FP8"
    FP8_PER_CHANNEL_PER_TOKEN = "FP8_PER_CHANNEL_PER_TOKEN"
    FP8_BLOCK_SCALES = "FP8_BLOCK_SCALES"
    NVFP4 = "NVFP4"
    W4A16_NVFP4 = "W4A16_NVFP4"
    W4A8_NVFP4_FP8 = "W4A8_NVFP4_FP8"
    W4A16_MXFP4 = "W4A16_MXFP4"
    W4A8_MXFP4_FP8 = "W4A8_MXFP4_FP8"
    W4A8_MXFP4_MXFP8 = "W4A8_MXFP4_MXFP8"
    MXFP8 = "MXFP8"
    W8A8_SQ = "W8A8_SQ"
    W8A16 = "W8A16"
    W4A16 = "W4A16"
    W4A16_AWQ = "W4A16_AWQ"
    W4A16_GPTQ = "W4A16_GPTQ"
    W4A8_AWQ = "W4A8_AWQ"
    W4A8_CUSTOM = "W4A8_CUSTOM"


class ActivationType(Word):
    """Activation between the two expert projections (TensorRT-LLM's ActivationType, by name)."""

    IDENTITY = "Identity"
    GELU = "Gelu"
    RELU = "Relu"
    SILU = "Silu"
    SWIGLU = "Swiglu"
    GEGLU = "Geglu"
    GEGLU_TANH = "GegluTanh"
    SWIGLU_BIAS = "SwigluBias"
    RELU2 = "Relu2"
    SITU = "SiTu"

    @property
    def is_gated(self) -> bool:
        """Whether FC1 has two halves, gate and up."""
        return self in _GATED


_GATED = frozenset(
    {
        ActivationType.SWIGLU,
        ActivationType.SWIGLU_BIAS,
        ActivationType.GEGLU,
        ActivationType.GEGLU_TANH,
        ActivationType.SITU,
    }
)


class RoutingMethodType(Word):
    """How router logits become expert ids and weights."""

    DEFAULT = "Default"
    RENORMALIZE = "Renormalize"
    DEEPSEEK_V3 = "DeepSeekV3"
    LLAMA4 = "Llama4"
    RENORMALIZE_NAIVE = "RenormalizeNaive"
    MINIMAX2 = "MiniMax2"
    MINIMAX3 = "MiniMax3"
    SIGMOID_RENORM = "SigmoidRenorm"
    DEEPSEEK_V4 = "DeepSeekV4"
    SQRT_SOFTPLUS = "SqrtSoftplus"
    SPARSE_MIXER = "SparseMixer"
    GROUPED_SOFTMAX = "GroupedSoftmax"
    UNSPECIFIED = "Unspecified"


class GroupScore(Word):
    """How a group of experts is scored in grouped top-k."""

    MAX = "max"
    TOP2_SUM = "top2_sum"


class DType(Word):
    """Element types, as strings so that the contract needs no torch."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT8_E4M3FN = "float8_e4m3fn"

    @property
    def num_bytes(self) -> int:
        """Bytes of one element."""
        return {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}[self.value]


class Device(Word):
    """What the layer computes on."""

    CUDA = "cuda"
    CPU = "cpu"


class LinkKind(Word):
    """The link between the GPUs of one node."""

    NVLINK = "nvlink"
    """Every pair of GPUs of the node is joined by NVLink or NVSwitch."""
    NVLINK_SPLIT = "nvlink_split"
    """NVLink bridges join some pairs only (PCIe-NVL cards)."""
    PCIE = "pcie"
    NONE = "none"
    """A single device, or no GPU."""


class CudaGraphMode(Word):
    """How much of a forward is captured in CUDA graphs."""

    NONE = "none"
    PIECEWISE = "piecewise"
    FULL = "full"


class CandidateKind(Word):
    """What a plugin offers."""

    BACKEND = "backend"
    COMMUNICATION = "communication"
    ROUTING = "routing"


class SchedulerKind(Word):
    """Who moves tokens between ranks: a communication strategy, or the backend itself."""

    EXTERNAL_COMM = "EXTERNAL_COMM"
    FUSED_COMM = "FUSED_COMM"


class TokenLayout(Word):
    """Order of the rows that reach the experts."""

    TOKEN_MAJOR = "token_major"
    """One row per received token with its K ids; reduced to one row before combine."""
    EXPERT_MAJOR = "expert_major"
    """One row per (token, expert) pair grouped by local expert; weighted by combine."""


class RoutingSplit(Word):
    """Where routing happens with respect to a backend's kernels."""

    SEPARATED = "separated"
    IN_KERNEL = "in_kernel"
    EITHER = "either"


class FixableBy(Word):
    """Who can remove the cause of a rejection."""

    INSTALL = "install"
    FLAG = "flag"
    TOPOLOGY = "topology"
    WORKLOAD = "workload"
    HARDWARE = "hardware"
    MODEL = "model"


class SelectedBy(Word):
    """The rule that decided between the eligible candidates."""

    REQUEST = "request"
    EVIDENCE = "evidence"
    """Measured times changed the order that it stands in."""
    PREDICTED = "predicted"
    """Times of tuning tables and cost models changed the order that it stands in."""
    PRIORITY = "priority"
    FALLBACK = "fallback"
    FUSED = "fused"
    """The backend exchanges tokens itself: no communication strategy is needed."""
    MODEL = "model"
    """The routing method has no name here, so the model routes by itself: no routing kernel is needed."""
    FAILED = "failed"


class RequestedBy(Word):
    """Who asked; an earlier member beats a later one."""

    ARGUMENT = "argument"
    ENVIRONMENT = "environment"
    FILE = "file"
    AUTO = "auto"


class LayerRole(Word):
    """A layer of the model itself, or of a draft (multi-token prediction) module beside it."""

    TARGET = "target"
    DRAFT = "draft"
