"""Every routing method: score, choose, weigh."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import torch

from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import RoutingMethodType
from moe_core.routing.choose import keep_best_groups, top_k_lower_id_first
from moe_core.routing.config import RoutingConfig
from moe_core.routing.scores import Score, sigmoid, softmax, sqrt_softplus
from moe_core.routing.sparse_mixer import sparse_mixer

SCORES: Final[Mapping[RoutingMethodType, Score]] = MappingProxyType(
    {
        RoutingMethodType.DEFAULT: softmax,
        RoutingMethodType.RENORMALIZE: softmax,
        RoutingMethodType.RENORMALIZE_NAIVE: softmax,
        RoutingMethodType.GROUPED_SOFTMAX: softmax,
        RoutingMethodType.LLAMA4: sigmoid,
        RoutingMethodType.SIGMOID_RENORM: sigmoid,
        RoutingMethodType.DEEPSEEK_V3: sigmoid,
        RoutingMethodType.MINIMAX2: sigmoid,
        RoutingMethodType.MINIMAX3: sigmoid,
        RoutingMethodType.DEEPSEEK_V4: sqrt_softplus,
        RoutingMethodType.SQRT_SOFTPLUS: sqrt_softplus,
    }
)
"""Score of each method; the sparse mixer has none of this form."""

EPSILON: Final = 1e-20
"""Added to the sum of the chosen scores, so that a row of underflowed scores gives zeros and not NaN."""


def route(
    problem: MoEProblem,
    logits_TE: torch.Tensor,
    bias_E: torch.Tensor | None = None,
    input_ids_T: torch.Tensor | None = None,
    table_VK: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`select_experts` with the routing of `problem`."""
    return select_experts(RoutingConfig.of(problem), logits_TE, bias_E, input_ids_T, table_VK)


def select_experts(
    config: RoutingConfig,
    logits_TE: torch.Tensor,
    bias_E: torch.Tensor | None = None,
    input_ids_T: torch.Tensor | None = None,
    table_VK: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Expert ids (int32 ``[T, K]``) and weights (float32 ``[T, K]``) for router logits ``[T, E]`` of any float type.

    `bias_E` is a float32 correction bias that takes part in the choice only. A hashed router needs the token ids
    `input_ids_T` and the table of experts per token id, `table_VK`. Raises ``ValueError`` when inputs do not fit.
    """
    check_inputs(config, logits_TE, bias_E, input_ids_T, table_VK)
    logits_TE = logits_TE.float()
    if config.method is RoutingMethodType.SPARSE_MIXER:
        ids_TK, weights_TK = sparse_mixer(logits_TE, config.top_k, config.jitter_eps)
    else:
        scores_TE = SCORES[config.method](logits_TE)
        if input_ids_T is not None and table_VK is not None and config.hashed:
            ids_TK = table_VK[input_ids_T].long()
        else:
            ids_TK = _choose(config, logits_TE, scores_TE, bias_E)
        weights_TK = scores_TE.gather(-1, ids_TK)
        if config.renormalize:
            weights_TK = weights_TK / (weights_TK.sum(dim=-1, keepdim=True) + EPSILON)
    if config.scaling_factor != 1.0:
        weights_TK = weights_TK * config.scaling_factor
    return ids_TK.int(), weights_TK


def _choose(
    config: RoutingConfig, logits_TE: torch.Tensor, scores_TE: torch.Tensor, bias_E: torch.Tensor | None
) -> torch.Tensor:
    # Scores rise with logits but saturate (a sigmoid is 1.0 above 17): where only the order counts, logits decide.
    ranking_TE = logits_TE if bias_E is None else scores_TE + bias_E
    if config.num_groups > 1:
        ranking_TE = scores_TE if bias_E is None else ranking_TE
        ranking_TE = keep_best_groups(ranking_TE, config.num_groups, config.topk_group, config.group_score)
    return top_k_lower_id_first(ranking_TE, config.top_k)


def check_inputs(
    config: RoutingConfig,
    logits_TE: torch.Tensor,
    bias_E: torch.Tensor | None,
    input_ids_T: torch.Tensor | None,
    table_VK: torch.Tensor | None,
) -> None:
    """Raises ``ValueError`` with everything that keeps these inputs of :func:`select_experts` from being routed."""
    errors = []
    if logits_TE.ndim != 2 or logits_TE.shape[-1] != config.num_experts:
        errors.append(f"router logits are {list(logits_TE.shape)}, needed [tokens, {config.num_experts}]")
    if bias_E is not None and config.method is RoutingMethodType.SPARSE_MIXER:
        errors.append("the sparse mixer takes no correction bias")
    if bias_E is not None and bias_E.dtype is not torch.float32:
        # Narrower types merge neighbouring biases, and the choice changes.
        errors.append(f"the correction bias is {bias_E.dtype}, needed torch.float32; load it without casting")
    if bias_E is not None and bias_E.shape != (config.num_experts,):
        errors.append(f"the correction bias is {list(bias_E.shape)}, needed [{config.num_experts}]")
    if config.hashed and (input_ids_T is None or table_VK is None):
        errors.append("hashed routing chooses by token id: give input_ids_T and table_VK")
    elif config.hashed and table_VK is not None and table_VK.shape[-1] != config.top_k:
        errors.append(f"the table of experts is {list(table_VK.shape)}, needed [vocabulary, {config.top_k}]")
    if errors:
        raise ValueError("; ".join(errors))
