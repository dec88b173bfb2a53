"""The first step of a chunk: ids and weights, checked, and rows that carry their weight where the problem says so."""

from __future__ import annotations

from typing import NamedTuple

import torch

from moe_core.execution import TORCH_DTYPE
from moe_core.schedule.abilities import FusesRouteQuant
from moe_core.schedule.balancer import NO_BALANCER
from moe_core.schedule.inputs import ForwardInputs
from moe_core.schedule.parts import LayerParts


class Routed(NamedTuple):
    """A chunk with its routes."""

    ids: torch.Tensor
    scales: torch.Tensor
    x: torch.Tensor
    x_sf: torch.Tensor | None
    is_quantized: bool


class RoutingStep:
    """Routes a chunk; everything that does not change between forwards is decided when it is made."""

    def __init__(self, parts: LayerParts) -> None:
        binding, backend = parts.binding, parts.backend
        self._select = parts.select_experts
        self._top_k = binding.problem.top_k
        self._weighs_input = bool(binding.problem.apply_router_weight_on_input)
        wanted = binding.candidate.input_requirement.routing_scales_dtype
        self._scales_dtype = None if wanted is None else TORCH_DTYPE[wanted]
        fuses = parts.balancer is NO_BALANCER and not self._weighs_input
        self._fused = backend.try_fused_route_quant if fuses and isinstance(backend, FusesRouteQuant) else None

    def __call__(self, inputs: ForwardInputs, *, may_quantize: bool) -> Routed:
        """Logical ids int32 and scales of `inputs`; with rows quantized, where one kernel does both and that is due."""
        if self._fused is not None and may_quantize and inputs.x_sf is None:
            inputs.ready.wait()
            fused = self._fused(inputs.x, inputs.router_logits)
            if fused is not None:
                return Routed(*fused, is_quantized=True)
        ids, scales = self._select(inputs.router_logits, inputs.input_ids)
        self._check(inputs, ids, scales)
        if self._scales_dtype is not None:
            scales = scales.to(self._scales_dtype)
        x = inputs.x
        if self._weighs_input:
            inputs.ready.wait()
            x, scales = x * scales.to(x.dtype), torch.ones_like(scales)
        return Routed(ids, scales, x, inputs.x_sf, is_quantized=inputs.x_sf is not None)

    def _check(self, inputs: ForwardInputs, ids: torch.Tensor, scales: torch.Tensor) -> None:
        needed = (inputs.num_rows, self._top_k)
        if ids.shape != needed or scales.shape != needed or ids.dtype is not torch.int32:
            raise ValueError(
                f"routing gave ids {list(ids.shape)} of {ids.dtype} and weights {list(scales.shape)}, needed "
                f"{list(needed)}, ids of torch.int32: one row of router_logits for each of hidden_states"
            )
        mask = inputs.is_padding
        if mask is not None and mask.shape != ids.shape[:1]:
            raise ValueError(
                f"is_padding is {list(mask.shape)}, needed [{inputs.num_rows}]: one for each of hidden_states"
            )
        if self._scales_dtype is torch.float32 and scales.dtype is not torch.float32:
            # Widening would hide that precision is gone already.
            raise ValueError(f"routing weights are {scales.dtype}, and the backend needs torch.float32")
        if self._weighs_input and inputs.x_sf is not None:
            raise ValueError("the router weight goes on the input, which is quantized already; give it unquantized")


def without_padding(ids_TK: torch.Tensor, inputs: ForwardInputs) -> torch.Tensor:
    """`ids_TK` with -1 in rows that are padding, which then cost no exchange and no compute; a copy if any is."""
    if inputs.num_real < inputs.num_rows:
        ids_TK = ids_TK.clone()
        ids_TK[inputs.num_real :] = -1
    if inputs.is_padding is not None:
        ids_TK = ids_TK.masked_fill(inputs.is_padding.unsqueeze(-1), -1)
    return ids_TK
