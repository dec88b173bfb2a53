"""Random tokens and routes, made on the device, the same for a seed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import DType
from moe_core.execution import TORCH_DTYPE, MoERunContext

ZIPF_EXPONENT = 1.0


@dataclass(frozen=True)
class Tokens:
    """One call's inputs."""

    context: MoERunContext
    logits_TE: torch.Tensor
    """Router logits, float32, with which softmax routing chooses the very ids of `context`."""
    ids_TK: torch.Tensor
    """The ids as int64, and below the weights in the activation's element type: what torch's routers give."""
    scales_TK: torch.Tensor


class TokenSource:
    """Draws one call's tokens after another, so that a call touches the experts that were idle the longest.

    Which experts are chosen together, and how often each, is as `routing` says: ``uniform``, or ``zipf`` with weight
    ``1 / rank``; no expert twice for a token. Experts are then renamed for each call, so that no call finds in a cache
    what the one before read, unless all experts are in use.
    """

    def __init__(self, problem: MoEProblem, device: torch.device, seed: int, routing: str = "uniform") -> None:
        E, K, H = problem.num_experts, problem.top_k, problem.hidden_size
        if E is None or K is None or H is None:
            raise ValueError("random tokens need num_experts, top_k and hidden_size")
        self._sizes, self._device = (E, K, H), device
        self._dtype = TORCH_DTYPE[problem.dtype_act or DType.BFLOAT16]
        self._generator = torch.Generator(device).manual_seed(seed)
        rank_E = torch.arange(1, E + 1, device=device, dtype=torch.float32)
        self._log_weight_E = torch.zeros_like(rank_E) if routing == "uniform" else -ZIPF_EXPONENT * rank_E.log()
        self._idle_E = torch.randperm(E, generator=self._generator, device=device)

    def draw(self, num_tokens: int) -> Tokens:
        """Tokens of one call."""
        E, K, H = self._sizes

        def uniform(*shape: int) -> torch.Tensor:
            return torch.rand(shape, generator=self._generator, device=self._device)

        # The K largest of weights with Gumbel noise are K draws without putting back.
        noisy_TE = self._log_weight_E - (-uniform(num_tokens, E).clamp_min(1e-20).log()).log()
        name_E = self._renamed(noisy_TE.topk(K, dim=-1).indices)
        logits_TE = torch.empty_like(noisy_TE)
        logits_TE[:, name_E] = noisy_TE
        top = logits_TE.topk(K, dim=-1)
        x_TH = torch.empty(num_tokens, H, device=self._device, dtype=self._dtype).normal_(generator=self._generator)
        scales_TK = top.values.softmax(dim=-1)
        context = MoERunContext(x=x_TH, token_selected_slots=top.indices.int(), token_final_scales=scales_TK)
        return Tokens(context, logits_TE, top.indices, scales_TK.to(self._dtype))

    def _renamed(self, ids_TK: torch.Tensor) -> torch.Tensor:
        """New names of all experts: the chosen ones get those that were idle the longest."""
        E = self._sizes[0]
        is_chosen_E = torch.zeros(E, dtype=torch.bool, device=self._device).index_fill_(0, ids_TK.flatten(), True)
        by_use_E = is_chosen_E.logical_not().to(torch.int8).argsort(stable=True)
        name_E = torch.empty_like(self._idle_E)
        name_E[by_use_E] = self._idle_E
        self._idle_E = self._idle_E.roll(-int(is_chosen_E.count_nonzero()))
        return name_E


def experts_of(tokens: Tokens) -> int:
    """Different experts that a call reads."""
    return len(torch.unique(tokens.ids_TK))
