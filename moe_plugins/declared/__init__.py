"""Candidates that other projects implement, declared as data: what they take, and in which order they refuse.

No row here has an adapter. TensorRT-LLM's own rows (`upstream`) keep its gates and their order, so that the first
reason of a refusal is the one that TensorRT-LLM gives.
"""

from __future__ import annotations

from moe_core.contract.candidate import MoECandidate
from moe_core.registry import Declared
from moe_plugins.declared import (
    b12x,
    cutedsl,
    cutlass,
    deep_ep,
    deepgemm,
    flashinfer_cutlass,
    flashinfer_trtllm_gen,
    marlin,
    mega_moe,
    nccl_ep,
    nvlink,
    prims_ts,
    reference_loop,
    routing_kernels,
    sonicmoe,
    triton_kernels,
    trtllm_gen,
)

_CANDIDATES: tuple[MoECandidate, ...] = (
    *b12x.CANDIDATES,
    *mega_moe.CANDIDATES,
    *cutedsl.CANDIDATES,
    *flashinfer_trtllm_gen.CANDIDATES,
    *trtllm_gen.CANDIDATES,
    *prims_ts.CANDIDATES,
    *deepgemm.CANDIDATES,
    *marlin.CANDIDATES,
    *triton_kernels.CANDIDATES,
    *cutlass.CANDIDATES,
    *reference_loop.CANDIDATES,
    *flashinfer_cutlass.CANDIDATES,
    *sonicmoe.CANDIDATES,
    *nvlink.CANDIDATES,
    *deep_ep.CANDIDATES,
    *routing_kernels.CANDIDATES,
)

PLUGINS: tuple[Declared, ...] = (*map(Declared, _CANDIDATES), nccl_ep.NcclEP(nccl_ep.CANDIDATE))
