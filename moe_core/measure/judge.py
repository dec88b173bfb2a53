"""Whether an answer is right: against the float32 twin, for a sample of the tokens where they are many."""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch

from moe_core.contract.problem import MoEProblem
from moe_core.measure.experts import Experts, apart
from moe_core.measure.inputs import Tokens
from moe_core.reference import reference_moe
from moe_core.routing import RoutingConfig, select_experts
from moe_core.testing.numerics import relative_error

SAMPLE = 64
"""Most tokens that the twin computes; it makes a float32 copy of one expert at a time."""


class Judge(Protocol):
    """The error of an answer to the tokens that it was made for."""

    def error(self, answer: Any) -> float | None:
        """Relative Frobenius error; ``None`` when the answer has NaN, infinity, ids of no expert, or another shape."""


class ExpertsJudge:
    """Compares the experts' output ``[T, H]``, for ids and weights given or made from logits."""

    def __init__(self, expected_SH: torch.Tensor, sample_S: torch.Tensor, num_tokens: int) -> None:
        self._expected_SH, self._sample_S, self._num_tokens = expected_SH, sample_S, num_tokens

    @classmethod
    def of(
        cls,
        problem: MoEProblem,
        weights: Experts,
        tokens: Tokens,
        *,
        slot_start: int = 0,
        routed: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> ExpertsJudge:
        """The twin's answer to a sample of `tokens`, with `weights` of the slots from `slot_start` on.

        Ids and weights are those of `tokens`, or `routed`.
        """
        x_TH = tokens.context.x
        ids_TK, scales_TK = routed or (tokens.context.token_selected_slots, tokens.context.token_final_scales)
        sample_S = torch.linspace(0, len(x_TH) - 1, min(SAMPLE, len(x_TH)), device=x_TH.device).long()
        expected_SH = reference_moe(
            problem.evolve(apply_router_weight_on_input=False),
            x_TH[sample_S], apart(weights), ids_TK[sample_S] - slot_start, scales_TK[sample_S],
        )  # fmt: skip
        return cls(expected_SH, sample_S, len(x_TH))

    def error(self, answer: Any) -> float | None:
        """Of the sampled rows."""
        if answer.shape != (self._num_tokens, self._expected_SH.shape[1]):
            return None
        return _finite(relative_error(answer[self._sample_S], self._expected_SH))


class RoutingJudge:
    """Compares ids and weights as rows ``[T, E]`` that are zero where an expert was not chosen."""

    def __init__(self, problem: MoEProblem, logits_TE: torch.Tensor, bias_E: torch.Tensor | None) -> None:
        self._num_experts = logits_TE.shape[1]
        self._expected_TE = self._dense(*select_experts(RoutingConfig.of(problem), logits_TE, bias_E))

    def error(self, answer: Any) -> float | None:
        """Of all rows."""
        ids_TK, weights_TK = answer
        if ids_TK.shape != weights_TK.shape or not bool(((ids_TK >= 0) & (ids_TK < self._num_experts)).all()):
            return None
        return _finite(relative_error(self._dense(*answer), self._expected_TE))

    def _dense(self, ids_TK: torch.Tensor, weights_TK: torch.Tensor) -> torch.Tensor:
        dense_TE = weights_TK.new_zeros(len(ids_TK), self._num_experts)
        return dense_TE.scatter_add_(1, ids_TK.long(), weights_TK)


def _finite(error: float) -> float | None:
    return error if math.isfinite(error) else None
