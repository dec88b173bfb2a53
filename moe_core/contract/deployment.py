"""Where it runs: parallel sizes, limits and switches. No rank id anywhere, so every rank holds an equal value."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from moe_core.contract.base import SCHEMA_VERSION, Frozen
from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.vocabulary import CudaGraphMode

Size = Annotated[int, Field(gt=0)]


class MoEDeployment(Frozen):
    """Where the layer runs, rank-independent.

    The world of the layer is ``ep_size * tp_size * cluster_size`` ranks; attention runs on the same ranks as
    ``dp_size`` data-parallel replicas of ``attention_tp_size`` ranks. `parallel_size` and `attention_tp_size` are
    filled in when not given; contradicting values are found by :func:`moe_core.contract.check.check`.
    Token limits are counts per rank.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    environment: MoEEnvironment = MoEEnvironment()

    ep_size: Size = 1
    tp_size: Size = 1
    """Tensor parallelism inside the experts (MoE TP)."""
    cluster_size: Size = 1
    """Smart-router clusters; more than one means the smart router is on."""
    dp_size: Size = 1
    """Attention data parallelism; 1 means every rank sees the same tokens."""
    attention_tp_size: Size | None = None
    parallel_size: Size | None = None
    helix_cp: bool = False
    """Helix context-parallel ranks that are not given back to the MoE layer."""
    num_nodes: Size | None = None
    ranks_per_node: Size | None = None

    num_slots: Size | None = None
    """EPLB slots over all ranks; ``None``: as many as experts."""
    eplb_enabled: bool = False
    moe_lora_enabled: bool = False
    fused_finalize_enabled: bool = True
    locality_domain_requested: bool = False
    dwdp_size: Size = 1

    max_num_tokens: Size | None = None
    """Most tokens that one rank brings to a forward."""
    moe_max_num_tokens: Size | None = None
    """Most tokens in one chunk of the MoE layer."""
    max_dispatch_tokens: Size | None = None
    """Tokens per rank that the low-latency dispatch buffers are sized for."""
    cuda_graph: CudaGraphMode = CudaGraphMode.NONE
    batch_invariant: bool = False
    """A token's result may not depend on the other tokens in the batch."""
    allow_alltoall: bool = True
    low_precision_combine: bool = False
    reserved_memory: Annotated[int, Field(ge=0)] = 0
    """Bytes of a device that others hold: attention, KV cache, the other layers' experts."""

    @model_validator(mode="after")
    def _fill(self) -> Self:
        world = self.ep_size * self.tp_size * self.cluster_size
        parallel = self.parallel_size or world
        nodes, per_node = self.num_nodes, self.ranks_per_node
        if per_node is None and nodes is not None and parallel % nodes == 0:
            per_node = parallel // nodes
        if nodes is None and per_node is not None and parallel % per_node == 0:
            nodes = parallel // per_node
        self.__dict__.update(
            parallel_size=parallel,
            attention_tp_size=self.attention_tp_size or max(parallel // self.dp_size, 1),
            num_nodes=nodes,
            ranks_per_node=per_node,
        )
        return self

    @property
    def use_dp(self) -> bool:
        """Whether attention is data parallel, so that ranks hold different tokens."""
        return self.dp_size > 1

    @property
    def dispatch_capacity(self) -> int | None:
        """Tokens per rank that bounded dispatch buffers hold: as declared, else the smaller token limit."""
        limits = [limit for limit in (self.max_num_tokens, self.moe_max_num_tokens) if limit is not None]
        return self.max_dispatch_tokens or min(limits, default=None)

    @property
    def smart_router(self) -> bool:
        """Whether the smart router is on."""
        return self.cluster_size > 1

    @property
    def world_size(self) -> int:
        """Ranks of the layer."""
        return self.ep_size * self.tp_size * self.cluster_size
