"""Who is preferred: one list per band, best first, from which priorities are computed.

========= ====================================================================
priority  candidates
========= ====================================================================
1000-1999 TensorRT-LLM's rows, in its own order
500-999   kernel packages of others
1-499     left to moe_core's own candidates that must not precede these
0         strangers, unless they say otherwise
========= ====================================================================

Candidates of moe_core that should precede TensorRT-LLM's take 2000 and above.
"""

from __future__ import annotations

from typing import Final

UPSTREAM_BACKENDS: Final = (
    "flashinfer.b12x.fused_moe.nvfp4",
    "flashinfer.b12x.fused_moe.w4a16_nvfp4",
    "deepgemm.cuda.mega_moe.w4a8_mxfp4_mxfp8",
    "trtllm.cutedsl.mega_moe.nvfp4",
    "trtllm.cutedsl.fused_moe.nvfp4",
    "trtllm.cutedsl.fused_moe.none",
    "trtllm.cutedsl.fused_fc12.nvfp4",
    "flashinfer.trtllm_gen.fused_moe.nvfp4",
    "flashinfer.trtllm_gen.fused_moe.fp8_block_scales",
    "flashinfer.trtllm_gen.fused_moe.w4a16_mxfp4",
    "flashinfer.trtllm_gen.fused_moe.w4a8_mxfp4_mxfp8",
    "flashinfer.trtllm_gen.fused_moe.none",
    "flashinfer.trtllm_gen.fused_moe.mxfp8",
    "trtllm.trtllm_gen.fused_moe.nvfp4",
    "trtllm.trtllm_gen.fused_moe.fp8_block_scales",
    "trtllm.trtllm_gen.fused_moe.w4a16_mxfp4",
    "trtllm.trtllm_gen.fused_moe.w4a8_mxfp4_mxfp8",
    "trtllm.trtllm_gen.fused_moe.w4a8_nvfp4_fp8",
    "trtllm.trtllm_gen.fused_moe.w4a8_mxfp4_fp8",
    "trtllm.prims_ts.fused_moe.any",
    "deepgemm.cuda.grouped_gemm.fp8_block_scales",
    "trtllm.cutedsl.dense_gemm.nvfp4",
    "marlin.cuda.fused_moe.nvfp4",
    "marlin.cuda.fused_moe.w4a16_nvfp4",
    "triton_kernels.triton.matmul_ogs.any",
    "deepgemm.cuda.hopper_grouped_gemm.fp8_block_scales",
    "trtllm.triton.blockscale_gemm.fp8_block_scales",
    "trtllm.cutlass.grouped_gemm.nvfp4",
    "trtllm.cutlass.grouped_gemm.w4a16_nvfp4",
    "trtllm.cutlass.grouped_gemm.mxfp8",
    "trtllm.cutlass.grouped_gemm.w4a8_mxfp4_fp8",
    "trtllm.cutlass.grouped_gemm.w4a8_mxfp4_mxfp8",
    "trtllm.cutlass.grouped_gemm.w4a16_mxfp4",
    "trtllm.cutlass.grouped_gemm.w4a8_awq",
    "trtllm.cutlass.grouped_gemm.w8a16",
    "trtllm.cutlass.grouped_gemm.fp8",
    "trtllm.cutlass.grouped_gemm.none",
    "trtllm.torch.reference_loop.any",
)

UPSTREAM_STRATEGIES: Final = (
    "trtllm.nvlink.one_sided.any",
    "trtllm.nvlink.two_sided.any",
    "flashinfer.nvlink.two_sided.any",
    "trtllm.nccl_ep.rank_major.any",
    "trtllm.nvshmem.normal.any",
    "trtllm.nvshmem.low_latency.any",
)
"""Without AllGatherReduceScatter, which takes 1000: it serves whatever none of these does."""

UPSTREAM_ROUTING: Final = (
    "trtllm.cuda.noaux_tc.any",
    "trtllm.cuda.deepseek_v4_gate.any",
    "trtllm.cuda.softmax_topk.any",
    "trtllm.torch.routing_methods.any",
)

PACKAGES: Final = (
    "deepgemm.cuda.contiguous_gemm.fp8_block_scales",
    "deepgemm.cuda.contiguous_gemm.none",
    "flashinfer.cutlass.fused_moe.nvfp4",
    "flashinfer.cutlass.fused_moe.w4a8_mxfp4_mxfp8",
    "flashinfer.cutlass.fused_moe.w4a16_mxfp4",
    "flashinfer.cutlass.fused_moe.fp8_block_scales",
    "flashinfer.cutlass.fused_moe.fp8",
    "flashinfer.cutlass.fused_moe.none",
    "vllm.cuda.marlin_moe.w4a16_mxfp4",
    "vllm.cuda.marlin_moe.nvfp4",
    "vllm.cuda.marlin_moe.w4a16_nvfp4",
    "vllm.cuda.marlin_moe.w4a16_awq",
    "vllm.cuda.marlin_moe.w4a16_gptq",
    "triton_kernels.triton.matmul_ogs.w4a16_mxfp4",
    "sonicmoe.cutedsl.general_routing.none",
)

PACKAGED_STRATEGIES: Final = (
    "deep_ep.nvshmem.normal.any",
    "deep_ep.nvshmem.low_latency.any",
)


def _ranked(best_first: tuple[str, ...], lowest: int) -> dict[str, int]:
    return {identity: lowest + 10 * place for place, identity in enumerate(reversed(best_first))}


PRIORITY: Final = {
    **_ranked(UPSTREAM_BACKENDS, 1000),
    **_ranked(UPSTREAM_STRATEGIES, 1010),
    **_ranked(UPSTREAM_ROUTING, 1000),
    **_ranked(PACKAGES, 500),
    **_ranked(PACKAGED_STRATEGIES, 500),
}
"""Priority of every identity; an identity that is in no list cannot be declared here."""
