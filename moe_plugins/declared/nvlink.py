"""Strategies over NVLink symmetric memory."""

from __future__ import annotations

from moe_core.contract.declare import AtMost, Equals, Installed, OneOf, Reason, SameAs, need, package
from moe_core.contract.requirement import Condition
from moe_plugins.declared.exchange import ALL_NVLINK, ALL_TO_ALL, EVEN_EXPERTS, EVEN_SLOTS, NVLINK_SPANS_NODES
from moe_plugins.declared.row import Requirements, strategy

TWO_SIDED: Requirements = (
    *ALL_TO_ALL,
    EVEN_EXPERTS,
    *ALL_NVLINK,
    NVLINK_SPANS_NODES,
    EVEN_SLOTS,
    need(Reason.TOPK_UNSUPPORTED, "top_k", AtMost(value=32)),
)

CANDIDATES = (
    strategy(
        "trtllm.nvlink.one_sided.any",
        "NVLINK_ONE_SIDED",
        "NVLinkOneSided: rows pushed to peers, sums pulled from them",
        (
            *ALL_TO_ALL,
            *ALL_NVLINK,
            NVLINK_SPANS_NODES,
            need(
                Reason.TOPOLOGY_UNSUPPORTED,
                "ep_size",
                SameAs(fact="parallel_size"),
                "spread the experts over every rank: ep_size equal to the world",
            ),
            need(Reason.TOPOLOGY_UNSUPPORTED, "ep_size", AtMost(value=256)),
            need(Reason.TOPK_UNSUPPORTED, "top_k", OneOf(values=(1, 2, 4, 6, 8, 10, 16))),
        ),
    ),
    strategy(
        "trtllm.nvlink.two_sided.any",
        "NVLINK_TWO_SIDED",
        "NVLinkTwoSided: rows through first-in first-out buffers, after an exchange of counts",
        TWO_SIDED,
    ),
    strategy(
        "flashinfer.nvlink.two_sided.any",
        "NVLINK_TWO_SIDED",
        "NVLinkTwoSidedFlashinfer: the same through flashinfer.comm",
        (
            *TWO_SIDED,
            package("flashinfer", hint="install flashinfer-python"),
            need(
                Reason.DEP_MISSING,
                "python_version",
                Installed(at_least="3.12"),
                "use Python 3.12 or later, or flashinfer before 0.6.16",
                when=(Condition(fact="package:flashinfer", test=Installed(at_least="0.6.16")),),
            ),
            need(Reason.FORMAT_INCOMPATIBLE, "low_precision_combine", Equals(value=False), "combine in full precision"),
        ),
    ),
)
