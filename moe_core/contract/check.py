"""The one check of a problem against a deployment: every contradiction at once."""

from __future__ import annotations

from functools import lru_cache

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.eligibility import Rejection
from moe_core.contract.problem import MoEProblem
from moe_core.contract.reasons import MoERejectReason
from moe_core.contract.vocabulary import FixableBy


@lru_cache(maxsize=4096)
def check(problem: MoEProblem, deployment: MoEDeployment) -> tuple[Rejection, ...]:
    """Every contradiction between `problem` and `deployment`, as INVALID_CONFIG rejections; empty when sound."""
    found: list[Rejection] = []

    def wrong(fact: str, value: int | bool, needed: str, hint: str, fixable: FixableBy = FixableBy.TOPOLOGY) -> None:
        found.append(
            Rejection.of(
                MoERejectReason.INVALID_CONFIG, fact=fact, found=value, needed=needed, hint=hint, fixable_by=fixable
            )
        )

    d = deployment
    world, parallel, attention_tp = d.world_size, d.parallel_size or 1, d.attention_tp_size or 1
    if world != parallel:
        wrong(
            "parallel_size",
            parallel,
            f"ep_size x tp_size x cluster_size = {world}",
            f"give parallel_size {world}, or MoE sizes whose product is {parallel}",
        )
    if d.dp_size * attention_tp != parallel:
        wrong(
            "dp_size",
            d.dp_size,
            f"dp_size x attention_tp_size = {parallel}, and {d.dp_size} x {attention_tp} is {d.dp_size * attention_tp}",
            f"use a dp_size that divides {parallel}",
        )
    experts = problem.num_experts
    if experts is not None and experts < d.ep_size:
        wrong(
            "num_experts",
            experts,
            f"at least ep_size {d.ep_size}: no rank may be without an expert",
            f"use ep_size <= {experts}",
        )
    if d.num_slots is not None and experts is not None and d.num_slots < experts:
        wrong("num_slots", d.num_slots, f"at least num_experts {experts}", f"use num_slots >= {experts}")
    if d.num_slots is not None and experts is not None and d.num_slots > experts and not d.eplb_enabled:
        wrong("num_slots", d.num_slots, f"num_experts {experts} without EPLB", "turn EPLB on to use redundant slots")
    if problem.apply_router_weight_on_input and problem.top_k not in (None, 1):
        wrong(
            "top_k",
            problem.top_k or 0,
            "1: a router weight on the input is that of one expert",
            "weigh the output",
            FixableBy.MODEL,
        )
    heads = problem.num_attention_heads
    if heads is not None and heads % attention_tp and attention_tp % heads:
        wrong(
            "num_attention_heads",
            heads,
            f"a multiple of attention_tp_size {attention_tp}",
            "use attention data parallelism, or a world size that divides the heads",
        )
    if d.num_nodes is not None and d.ranks_per_node is not None and d.num_nodes * d.ranks_per_node != parallel:
        wrong(
            "num_nodes",
            d.num_nodes,
            f"num_nodes x ranks_per_node = {parallel}, and {d.num_nodes} x "
            f"{d.ranks_per_node} is {d.num_nodes * d.ranks_per_node}",
            "give sizes that multiply to the world",
        )
    if d.helix_cp:
        wrong(
            "helix_cp",
            True,
            "Helix context-parallel ranks given back to the MoE layer",
            "repurpose the context-parallel ranks, or do not use Helix",
        )
    if d.eplb_enabled and d.dwdp_size > 1:
        wrong("dwdp_size", d.dwdp_size, "1 with EPLB: they exclude each other", "turn EPLB or DWDP off", FixableBy.FLAG)
    if d.dwdp_size > 1 and d.tp_size > 1:
        wrong("dwdp_size", d.dwdp_size, "MoE TP 1 with DWDP", "use tp_size 1", FixableBy.TOPOLOGY)
    return tuple(found)
