"""Why a candidate, a deployment or a plugin is refused: a closed list, each with who can usually fix it."""

from __future__ import annotations

from moe_core.contract.vocabulary import FixableBy, Word


class MoERejectReason(Word):
    """Reason codes. The first fifteen are TensorRT-LLM's, with its values."""

    QUANT_UNSUPPORTED = "quant_unsupported"
    DTYPE_UNSUPPORTED = "dtype_unsupported"
    SM_UNSUPPORTED = "sm_unsupported"
    DEP_MISSING = "dep_missing"
    SHAPE_UNALIGNED = "shape_unaligned"
    SLOTS_NOT_DIVISIBLE_BY_EP = "slots_not_divisible_by_ep"
    TOPOLOGY_UNSUPPORTED = "topology_unsupported"
    LORA_UNSUPPORTED = "lora_unsupported"
    ACTIVATION_UNSUPPORTED = "activation_unsupported"
    ROUTING_UNSUPPORTED = "routing_unsupported"
    EPLB_UNSUPPORTED = "eplb_unsupported"
    FINALIZE_FUSION_REQUIRED = "finalize_fusion_required"
    PATH_NOT_ENABLED = "path_not_enabled"
    BACKEND_DEPRECATED = "backend_deprecated"
    NOT_AN_IMPL = "not_an_impl"
    BIAS_UNSUPPORTED = "bias_unsupported"
    TOPK_UNSUPPORTED = "topk_unsupported"
    CUDA_GRAPH_UNSUPPORTED = "cuda_graph_unsupported"
    TOKENS_OVER_CAPACITY = "tokens_over_capacity"
    FORMAT_INCOMPATIBLE = "format_incompatible"
    NOT_BATCH_INVARIANT = "not_batch_invariant"
    RESOURCE_EXCEEDED = "resource_exceeded"
    INVALID_CONFIG = "invalid_config"
    RANK_DISAGREEMENT = "rank_disagreement"
    PLUGIN_ERROR = "plugin_error"
    BANNED = "banned"

    @property
    def usually_fixable_by(self) -> FixableBy:
        """Who can usually remove the cause; a requirement may say otherwise."""
        return _FIXABLE_BY[self]

    @property
    def meaning(self) -> str:
        """One sentence for people."""
        return _MEANING[self]


_FIXABLE_BY = {
    MoERejectReason.QUANT_UNSUPPORTED: FixableBy.MODEL,
    MoERejectReason.DTYPE_UNSUPPORTED: FixableBy.MODEL,
    MoERejectReason.SM_UNSUPPORTED: FixableBy.HARDWARE,
    MoERejectReason.DEP_MISSING: FixableBy.INSTALL,
    MoERejectReason.SHAPE_UNALIGNED: FixableBy.TOPOLOGY,
    MoERejectReason.SLOTS_NOT_DIVISIBLE_BY_EP: FixableBy.TOPOLOGY,
    MoERejectReason.TOPOLOGY_UNSUPPORTED: FixableBy.TOPOLOGY,
    MoERejectReason.LORA_UNSUPPORTED: FixableBy.WORKLOAD,
    MoERejectReason.ACTIVATION_UNSUPPORTED: FixableBy.MODEL,
    MoERejectReason.ROUTING_UNSUPPORTED: FixableBy.MODEL,
    MoERejectReason.EPLB_UNSUPPORTED: FixableBy.FLAG,
    MoERejectReason.FINALIZE_FUSION_REQUIRED: FixableBy.FLAG,
    MoERejectReason.PATH_NOT_ENABLED: FixableBy.FLAG,
    MoERejectReason.BACKEND_DEPRECATED: FixableBy.FLAG,
    MoERejectReason.NOT_AN_IMPL: FixableBy.INSTALL,
    MoERejectReason.BIAS_UNSUPPORTED: FixableBy.MODEL,
    MoERejectReason.TOPK_UNSUPPORTED: FixableBy.MODEL,
    MoERejectReason.CUDA_GRAPH_UNSUPPORTED: FixableBy.FLAG,
    MoERejectReason.TOKENS_OVER_CAPACITY: FixableBy.WORKLOAD,
    MoERejectReason.FORMAT_INCOMPATIBLE: FixableBy.FLAG,
    MoERejectReason.NOT_BATCH_INVARIANT: FixableBy.FLAG,
    MoERejectReason.RESOURCE_EXCEEDED: FixableBy.TOPOLOGY,
    MoERejectReason.INVALID_CONFIG: FixableBy.TOPOLOGY,
    MoERejectReason.RANK_DISAGREEMENT: FixableBy.TOPOLOGY,
    MoERejectReason.PLUGIN_ERROR: FixableBy.INSTALL,
    MoERejectReason.BANNED: FixableBy.FLAG,
}

_MEANING = {
    MoERejectReason.QUANT_UNSUPPORTED: "the kernel does not compute this weight/activation format",
    MoERejectReason.DTYPE_UNSUPPORTED: "the kernel does not take activations of this element type",
    MoERejectReason.SM_UNSUPPORTED: "the kernel was not built for this compute capability",
    MoERejectReason.DEP_MISSING: "a package, a version of it, or a symbol in it is missing",
    MoERejectReason.SHAPE_UNALIGNED: "a size is not a multiple of what the kernel's tiles or scale blocks need",
    MoERejectReason.SLOTS_NOT_DIVISIBLE_BY_EP: "experts or slots do not divide evenly over the EP ranks",
    MoERejectReason.TOPOLOGY_UNSUPPORTED: "the parallel sizes or the links between GPUs do not fit",
    MoERejectReason.LORA_UNSUPPORTED: "LoRA on the routed experts is not supported",
    MoERejectReason.ACTIVATION_UNSUPPORTED: "the activation, or one of its constants, is not computed",
    MoERejectReason.ROUTING_UNSUPPORTED: "the routing method, or where its weights apply, is not supported",
    MoERejectReason.EPLB_UNSUPPORTED: "expert-parallel load balancing is not supported",
    MoERejectReason.FINALIZE_FUSION_REQUIRED: "the kernel runs only with fused finalize, which is disabled",
    MoERejectReason.PATH_NOT_ENABLED: "the path is not switched on, or no adapter for it is installed",
    MoERejectReason.BACKEND_DEPRECATED: "the backend was withdrawn",
    MoERejectReason.NOT_AN_IMPL: "what was named is not an implementation",
    MoERejectReason.BIAS_UNSUPPORTED: "the kernel has no expert bias",
    MoERejectReason.TOPK_UNSUPPORTED: "the number of experts per token is outside what the kernel takes",
    MoERejectReason.CUDA_GRAPH_UNSUPPORTED: "the implementation cannot be captured as the deployment asks",
    MoERejectReason.TOKENS_OVER_CAPACITY: "a rank may hold more tokens than the buffers take",
    MoERejectReason.FORMAT_INCOMPATIBLE: "kernel, communication or weights disagree on a data layout",
    MoERejectReason.NOT_BATCH_INVARIANT: "a token's result may depend on the other tokens in the batch",
    MoERejectReason.RESOURCE_EXCEEDED: "more device memory or shared memory is needed than there is",
    MoERejectReason.INVALID_CONFIG: "problem and deployment contradict each other",
    MoERejectReason.RANK_DISAGREEMENT: "ranks resolved differently",
    MoERejectReason.PLUGIN_ERROR: "the plugin could not be loaded, broke the contract, or raised",
    MoERejectReason.BANNED: "banned by the user",
}
