"""DeepEP: TensorRT-LLM's fork, and the public package."""

from __future__ import annotations

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.declare import (
    AtMost,
    Conditions,
    Equals,
    FixableBy,
    Installed,
    NoneOf,
    OneOf,
    Reason,
    Requirement,
    SameAs,
    flag,
    is_,
    isnt,
    need,
    package,
)
from moe_core.contract.requirement import Condition
from moe_core.contract.vocabulary import CudaGraphMode, LinkKind, QuantAlgo, TokenLayout
from moe_plugins.declared.exchange import ALL_NVLINK, ALL_TO_ALL, EVEN_EXPERTS, EVEN_SLOTS, NO_CONSUMER_BLACKWELL
from moe_plugins.declared.limits import BF16
from moe_plugins.declared.row import Requirements, strategy

INSTALLED = package("deep_ep", hint="install DeepEP from its repository; PyPI's deep-ep is a placeholder")
NOT_SWITCHED_OFF = flag("TRTLLM_CAN_USE_DEEP_EP", "1", default="1")

NOT_SPLIT = need(
    Reason.TOPOLOGY_UNSUPPORTED,
    "link",
    NoneOf(values=(LinkKind.NVLINK_SPLIT,)),
    "needs one kind of link between all GPUs of a node",
    fixable=FixableBy.HARDWARE,
)

ONE_NODE: Conditions = (is_("num_nodes", 1),)
SEVERAL_NODES: Conditions = (isnt("num_nodes", 1),)
WORLD: Requirements = (
    need(Reason.TOPOLOGY_UNSUPPORTED, "ep_size", OneOf(values=(2, 4, 8)), when=ONE_NODE),
    need(Reason.TOPOLOGY_UNSUPPORTED, "ep_size", SameAs(fact="ranks_per_node"), when=ONE_NODE),
    need(Reason.TOPOLOGY_UNSUPPORTED, "ranks_per_node", Equals(value=8), when=SEVERAL_NODES),
    need(Reason.TOPOLOGY_UNSUPPORTED, "num_nodes", OneOf(values=(2, 4, 8, 16)), when=SEVERAL_NODES),
)
"""2, 4 or 8 ranks that fill a node, or 2, 4, 8 or 16 nodes of 8."""

NORMAL: Requirements = (
    need(Reason.TOPOLOGY_UNSUPPORTED, "slots_per_rank", AtMost(value=128), "spread the experts over more ranks"),
    need(
        Reason.CUDA_GRAPH_UNSUPPORTED,
        "cuda_graph",
        OneOf(values=(CudaGraphMode.NONE, CudaGraphMode.PIECEWISE)),
        "over several nodes the host waits for the number of rows received: capture piecewise, or not at all",
        when=SEVERAL_NODES,
    ),
)
LOW_LATENCY: Requirements = (
    need(Reason.TOPK_UNSUPPORTED, "top_k", AtMost(value=16)),
    need(
        Reason.TOKENS_OVER_CAPACITY,
        "max_num_tokens",
        AtMost(times="max_dispatch_tokens"),
        "raise max_dispatch_tokens, or limit the tokens of a forward",
    ),
)


def _widths(*sizes: int, version: Installed | None = None) -> Requirement:
    return need(
        Reason.SHAPE_UNALIGNED,
        "hidden_size",
        OneOf(values=sizes),
        "the kernels are compiled for a list of widths: pad to the next, or use another strategy",
        when=() if version is None else (Condition(fact="package:deep_ep", test=version),),
    )


FORK_WIDTHS = _widths(2048, 2560, 3584, 4096, 5120, 6144, 7168)
PUBLIC_WIDTHS: Requirements = (
    _widths(2560, 4096, 5120, 7168, version=Installed(below="1.2")),
    # 3072 came after the tag 1.2.1, in builds that still call themselves 1.2.1 and a commit.
    _widths(2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192, version=Installed(at_least="1.2")),
)


def _normal(identity: str, title: str, *gates: Requirement, upstream: bool) -> MoECandidate:
    return strategy(
        identity,
        "DEEPEP",
        title,
        (*ALL_TO_ALL, EVEN_EXPERTS, *gates, BF16, INSTALLED, *ALL_NVLINK, *WORLD, EVEN_SLOTS, *NORMAL),
        upstream=upstream,
        post_quant=(QuantAlgo.NVFP4,) if upstream else (QuantAlgo.FP8_BLOCK_SCALES,),
        max_chunks=1,
    )


def _low_latency(identity: str, title: str, *gates: Requirement, widths: Requirements, upstream: bool) -> MoECandidate:
    return strategy(
        identity,
        "DEEPEPLOWLATENCY",
        title,
        (
            *ALL_TO_ALL,
            EVEN_EXPERTS,
            *gates,
            BF16,
            INSTALLED,
            NO_CONSUMER_BLACKWELL,
            NOT_SPLIT,
            *widths,
            EVEN_SLOTS,
            *LOW_LATENCY,
        ),
        upstream=upstream,
        layout=TokenLayout.EXPERT_MAJOR,
        post_quant=(QuantAlgo.FP8, QuantAlgo.NVFP4, QuantAlgo.W4A8_AWQ) if upstream else (QuantAlgo.FP8_BLOCK_SCALES,),
        max_chunks=1,
        bounded_tokens=True,
    )


CANDIDATES = (
    _normal("trtllm.nvshmem.normal.any", "DeepEP (TensorRT-LLM's fork)", NOT_SWITCHED_OFF, upstream=True),
    _low_latency(
        "trtllm.nvshmem.low_latency.any",
        "DeepEPLowLatency (TensorRT-LLM's fork)",
        NOT_SWITCHED_OFF,
        widths=(FORK_WIDTHS,),
        upstream=True,
    ),
    _normal("deep_ep.nvshmem.normal.any", "DeepEP's throughput kernels", upstream=False),
    _low_latency(
        "deep_ep.nvshmem.low_latency.any", "DeepEP's low-latency kernels", widths=PUBLIC_WIDTHS, upstream=False
    ),
)
