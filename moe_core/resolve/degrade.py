"""Steps down that a resolution takes, written out: from what, to what, why, and what would change it."""

from __future__ import annotations

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.decision import Decision, Degradation, RejectedCandidate
from moe_core.contract.predicate import show
from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import CandidateKind, QuantAlgo
from moe_core.resolve.selector import Selector

QUANTIZED_ACTIVATIONS = frozenset(
    {
        QuantAlgo.FP8,
        QuantAlgo.FP8_PER_CHANNEL_PER_TOKEN,
        QuantAlgo.FP8_BLOCK_SCALES,
        QuantAlgo.NVFP4,
        QuantAlgo.W4A8_NVFP4_FP8,
        QuantAlgo.W4A8_MXFP4_FP8,
        QuantAlgo.W4A8_MXFP4_MXFP8,
        QuantAlgo.MXFP8,
        QuantAlgo.W8A8_SQ,
        QuantAlgo.W4A8_AWQ,
        QuantAlgo.W4A8_CUSTOM,
    }
)
"""Formats whose activations are quantized, so that moving them quantized saves bandwidth."""


def step_down(decision: Decision, requested: Selector, winner: MoECandidate) -> list[Degradation]:
    """The degradation from what was requested to `winner`; none when the winner is what was requested."""
    if winner in requested:
        return []
    wanted = [c for c in decision.rejected if requested.identities and c.identity in requested.identities]
    reason, hint = _nearest_miss(wanted) if wanted else ("no communication strategy serves it here", "")
    return [Degradation(kind=decision.kind, source=requested.text, target=winner.identity, reason=reason, hint=hint)]


def _nearest_miss(refused: list[RejectedCandidate]) -> tuple[str, str]:
    """Reason and hint of the candidate that came closest: the report has those of all others."""
    nearest = min(refused, key=lambda c: (len(c.rejections), c.identity))
    parts = [f"{r.reason.name} {r.fact}: found {show(r.found)}, needed {r.needed}" for r in nearest.rejections]
    text = f"{nearest.identity} was refused: {'; '.join(parts)}"
    if len(refused) > 1:
        text += f" (the nearest of {len(refused)} refused)"
    return text, "; ".join(dict.fromkeys(r.hint for r in nearest.rejections if r.hint))


def too_late_to_quantize(problem: MoEProblem, strategy: MoECandidate) -> list[Degradation]:
    """The degradation of moving activations unquantized, where the strategy cannot move this format."""
    if (
        strategy.post_quant is None
        or problem.quant not in QUANTIZED_ACTIVATIONS
        or problem.quant in strategy.post_quant
    ):
        return []
    moved = ", ".join(strategy.post_quant) or "no format"
    return [
        Degradation(
            kind=CandidateKind.COMMUNICATION,
            source="quantize before dispatch",
            target="quantize after dispatch",
            reason=f"{strategy.identity} moves {moved} quantized, not {problem.quant}",
            hint="rows travel in the activation's element type",
        )
    ]
