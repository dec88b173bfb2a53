"""The layer as compilers see it: one opaque operation, for inference.

What a forward does depends on state that compilers cannot trace (exchange buffers, the turn of an iteration, weights
that are loaded again), so compiled code calls the layer itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

import torch
from torch.library import CustomOpDef  # type: ignore[attr-defined]  # it is public, and not listed


class OpaqueLayer(Protocol):
    """A layer that compiled code can call."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        input_ids: torch.Tensor | None,
        all_rank_num_tokens: Sequence[int] | None,
        *,
        hidden_states_sf: torch.Tensor | None,
        use_dp_padding: bool,
        is_padding: torch.Tensor | None,
    ) -> Any:
        """The routed experts' sum per token, ``[N, H]``."""

    def forward_fake(self, hidden_states: torch.Tensor, all_rank_num_tokens: Sequence[int] | None) -> torch.Tensor:
        """What `forward` gives, with nothing in it."""


_layers: Final[WeakValueDictionary[int, OpaqueLayer]] = WeakValueDictionary()
"""Layers by id: all that compiled code can carry of one."""


def make_callable(layer: OpaqueLayer) -> None:
    """Let compiled code find `layer` for as long as it lives."""
    _layers[id(layer)] = layer


def run_opaque(
    layer: OpaqueLayer,
    x_TH: torch.Tensor,
    router_logits_TE: torch.Tensor,
    input_ids_T: torch.Tensor | None,
    all_rank_num_tokens: Sequence[int] | None,
    *,
    x_sf: torch.Tensor | None,
    use_dp_padding: bool,
    is_padding_T: torch.Tensor | None,
) -> torch.Tensor:
    """The forward of `layer`, as one operation that is run when compiled code runs."""
    output: torch.Tensor = _run(
        x_TH, router_logits_TE, id(layer), input_ids_T, all_rank_num_tokens, x_sf, use_dp_padding, is_padding_T
    )
    return output


def for_inference_only(operation: CustomOpDef, advice: str) -> None:
    """Have `operation` raise ``RuntimeError`` with `advice` when its gradients are asked for."""

    def no_backward(*_arguments: object) -> None:
        raise RuntimeError(f"compiled experts have no gradients; try: {advice}")

    operation.register_autograd(no_backward)


@torch.library.custom_op("moe_core::configurable_moe", mutates_args=())
def _run(
    x_TH: torch.Tensor,
    router_logits_TE: torch.Tensor,
    layer_id: int,
    input_ids_T: torch.Tensor | None,
    all_rank_num_tokens: Sequence[int] | None,
    x_sf: torch.Tensor | None,
    use_dp_padding: bool,
    is_padding_T: torch.Tensor | None,
) -> torch.Tensor:
    with torch.no_grad():
        y_NH: torch.Tensor = _layer(layer_id).forward(
            x_TH,
            router_logits_TE,
            input_ids_T,
            all_rank_num_tokens,
            hidden_states_sf=x_sf,
            use_dp_padding=use_dp_padding,
            is_padding=is_padding_T,
        )
    return y_NH.contiguous()


@_run.register_fake
def _(
    x_TH: torch.Tensor,
    _router_logits_TE: torch.Tensor,
    layer_id: int,
    _input_ids_T: torch.Tensor | None,
    all_rank_num_tokens: Sequence[int] | None,
    *_others: object,
) -> torch.Tensor:
    return _layer(layer_id).forward_fake(x_TH, all_rank_num_tokens)


for_inference_only(_run, "torch.no_grad() around the compiled call, or train the layer eagerly")


def _layer(layer_id: int) -> OpaqueLayer:
    layer = _layers.get(layer_id)
    if layer is None:
        raise RuntimeError(
            "the layer that was compiled is gone, or a copy of another; try: compile a layer that from_report made, "
            "and keep it alive"
        )
    return layer
