"""First-party candidates: the entry point ``moe_plugins:PLUGINS`` names every one of them."""

from __future__ import annotations

from moe_core.registry import Declared
from moe_plugins import (
    comm_all_gather,
    comm_all_to_all,
    comm_expert_major,
    comm_none,
    declared,
    fused_all_to_all,
    routing_torch,
    torch_grouped,
    triton_moe,
    vanilla,
)
from moe_plugins.triton_moe import quant_candidates, routing_candidates

PLUGINS: tuple[object, ...] = (
    *declared.PLUGINS,
    *(
        Declared(candidate)
        for plugin in (
            comm_none,
            comm_all_gather,
            comm_all_to_all,
            comm_expert_major,
            vanilla,
            torch_grouped,
            fused_all_to_all,
            routing_torch,
            routing_candidates,
        )
        for candidate in plugin.CANDIDATES
    ),
    *(Declared(candidate, tuning=triton_moe.TUNING[candidate.identity]) for candidate in triton_moe.CANDIDATES),
    *(Declared(candidate, tuning=quant_candidates.TUNING) for candidate in quant_candidates.CANDIDATES),
)
