"""Every routing method in one launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import torch
import triton
from torch.autograd.function import once_differentiable

from moe_core.contract.vocabulary import GroupScore, RoutingMethodType
from moe_core.execution import Binding
from moe_core.routing import RoutingConfig, check_inputs, select_experts
from moe_core.routing.route import EPSILON, SCORES
from moe_plugins.triton_moe.launch import launch
from moe_plugins.triton_moe.recording import Recorder
from moe_plugins.triton_moe.router_kernels import choose_and_weigh, mix_sparsely

NARROW: Final = (torch.bfloat16, torch.float16)
WARP: Final = 32
"""Lanes of a warp: rows that fill it are reduced in one instruction."""


class TritonRouter:
    """The kernels, bound to a problem.

    Raises ``ValueError`` when the problem's routing is unknown or contradicts itself.
    """

    def __init__(self, binding: Binding) -> None:
        self._config = RoutingConfig.of(binding.problem)
        self._pdl = (binding.deployment.environment.sm or 0) >= 90
        self._meta = meta_of(self._config)
        self._recorder = Recorder(self._launched)

    def __call__(
        self,
        logits_TE: torch.Tensor,
        bias_E: torch.Tensor | None,
        input_ids_T: torch.Tensor | None,
        table_VK: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Expert ids int32 ``[T, K]`` and weights float32 ``[T, K]``; gradients flow from the weights to the logits."""
        check_inputs(self._config, logits_TE, bias_E, input_ids_T, table_VK)
        if logits_TE.requires_grad and torch.is_grad_enabled():
            ids_TK, weights_TK = _WithGradient.apply(  # type: ignore[no-untyped-call]
                self, logits_TE, bias_E, input_ids_T, table_VK
            )
            return ids_TK, weights_TK
        return self._select(logits_TE, bias_E, input_ids_T, table_VK)

    def _select(
        self,
        logits_TE: torch.Tensor,
        bias_E: torch.Tensor | None,
        input_ids_T: torch.Tensor | None,
        table_VK: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        num_tokens = logits_TE.shape[0]
        if num_tokens == 0:
            return self._outputs(logits_TE)
        logits_TE = (logits_TE if logits_TE.dtype in NARROW else logits_TE.float()).contiguous()
        # What a method does not read has to be a pointer all the same, of a type that does not vary.
        used = (bias_E, input_ids_T, table_VK) if self._config.hashed else (bias_E, None, None)
        read = [logits_TE if tensor is None else tensor.contiguous() for tensor in used]
        key = num_tokens, logits_TE.dtype, bias_E is None, read[1].dtype
        ids_TK, weights_TK = self._recorder(key, logits_TE, *read)
        return ids_TK, weights_TK

    def _outputs(self, logits_TE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (logits_TE.shape[0], self._config.top_k)
        ids_TK = torch.empty(shape, dtype=torch.int32, device=logits_TE.device)
        return ids_TK, torch.empty(shape, dtype=torch.float32, device=logits_TE.device)

    def _launched(
        self, logits_TE: torch.Tensor, bias_E: torch.Tensor, *hashed: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        num_tokens = logits_TE.shape[0]
        ids_TK, weights_TK = self._outputs(logits_TE)
        block, num_warps = tile_of(num_tokens, self._config.num_experts)
        meta = {**self._meta, "BT": block, "PDL": self._pdl}
        if self._config.method is RoutingMethodType.SPARSE_MIXER:
            kernel: Any = mix_sparsely
            args: tuple[Any, ...] = (logits_TE, ids_TK, weights_TK, num_tokens)
        else:
            kernel = choose_and_weigh
            args = (logits_TE, bias_E, *hashed, ids_TK, weights_TK, num_tokens)
            meta |= {"HAS_BIAS": bias_E is not logits_TE, "NARROW": logits_TE.dtype in NARROW}
        launch(kernel, (-(-num_tokens // block),), args, meta, num_warps=num_warps, pdl=self._pdl)
        return ids_TK, weights_TK


def meta_of(config: RoutingConfig) -> Mapping[str, Any]:
    """`config` as compile-time arguments of its method's kernel."""
    meta = {
        "E": config.num_experts,
        "K": config.top_k,
        "KP": triton.next_power_of_2(config.top_k),
        "SCALE": config.scaling_factor,
        # The interpreter has no library of device functions.
        "LIBDEVICE": not triton.knobs.runtime.interpret,
    }
    if config.method is RoutingMethodType.SPARSE_MIXER:
        return meta | {"EP": max(triton.next_power_of_2(config.num_experts), WARP), "REACH": 2 * config.jitter_eps}
    groups = triton.next_power_of_2(config.num_groups)
    return meta | {
        "G": config.num_groups,
        "KEPT": config.topk_group,
        "TOP2": config.group_score is GroupScore.TOP2_SUM,
        "GP": groups,
        "SP": max(triton.next_power_of_2(config.num_experts // config.num_groups), WARP // groups),
        "SCORE": SCORES[config.method].__name__,
        "HASHED": config.hashed,
        "RENORMALIZE": config.renormalize,
        "EPS": EPSILON,
    }


def tile_of(num_tokens: int, num_experts: int) -> tuple[int, int]:
    """Tokens of a program, and its warps: the fastest on an H200, or near it, for most methods."""
    return (8, 8) if num_tokens > 512 and num_experts <= 128 else (1, 1)


class _WithGradient(torch.autograd.Function):
    """The kernel forward; backward, the twin's gradient for the experts that the kernel chose."""

    @staticmethod
    def forward(ctx: Any, router: TritonRouter, logits_TE: torch.Tensor, *others: torch.Tensor | None) -> Any:
        ids_TK, weights_TK = router._select(logits_TE, *others)
        ctx.config = router._config
        ctx.save_for_backward(logits_TE, ids_TK)
        ctx.mark_non_differentiable(ids_TK)
        return ids_TK, weights_TK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: torch.Tensor, grad_TK: torch.Tensor) -> Any:
        logits_TE, ids_TK = ctx.saved_tensors
        logits_TE = logits_TE.detach().requires_grad_()
        # A table with a row for each token: the choice is made.
        chosen, tokens_T = replace(ctx.config, hashed=True), torch.arange(len(ids_TK), device=ids_TK.device)
        with torch.enable_grad():
            _, weights_TK = select_experts(chosen, logits_TE, None, tokens_T, ids_TK)
        (grad_TE,) = torch.autograd.grad(weights_TK, logits_TE, grad_TK)
        return None, grad_TE, None, None, None
