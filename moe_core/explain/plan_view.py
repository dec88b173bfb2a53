"""The document of forward plans: chunks and padding per rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moe_core.contract.plan import ForwardPlan
from moe_core.contract.problem import MoEProblem
from moe_core.explain.document import Block, Document, Row, Section, Table, Text, muted, name, words
from moe_core.explain.heads import degraded
from moe_core.explain.phrases import counted
from moe_core.resolve.degrade import QUANTIZED_ACTIVATIONS


def plan_document(plans: Sequence[tuple[str, MoEProblem, ForwardPlan]]) -> Document:
    """One section per distinct plan, with the layers (``layers 3-60``) that follow it."""
    same: dict[tuple[ForwardPlan, bool], list[str]] = {}
    for scope, problem, plan in plans:
        same.setdefault((plan, problem.quant in QUANTIZED_ACTIVATIONS), []).append(scope)
    sections = [
        Section("", tuple(_blocks(plan, quantizes, "; ".join(filter(None, scopes)))))
        for (plan, quantizes), scopes in same.items()
    ]
    return Document("plan", tuple(sections))


def _blocks(plan: ForwardPlan, quantizes: bool, scope: str) -> Iterator[Block]:
    yield Row("backend", words(name(plan.backend)))
    strategy = words(name(plan.communication)) if plan.communication else words("inside the backend's kernel")
    yield Row("exchange", strategy)
    yield from map(degraded, plan.degradations)
    if scope:
        yield Row("for", words(scope))
    yield Row("quantize", words(plan.quantize.replace("_", " ") if quantizes else "nothing: rows travel as they are"))
    yield Row("weigh", words(f"by {plan.finalize}"))
    if not plan.chunks:
        yield Row("chunks", words("none: no rank has a token, and every rank returns without a collective"))
        return
    yield Row("chunks", words(counted(len(plan.chunks), "chunk")))
    headings = ("rank", "tokens", "padded", *(f"chunk {i}" for i in range(len(plan.chunks))))
    yield Table(headings, tuple(_rank(plan, rank) for rank in range(len(plan.num_tokens))))


def _rank(plan: ForwardPlan, rank: int) -> tuple[Text, ...]:
    cells = (str(rank), str(plan.num_tokens[rank]), str(plan.padded_tokens[rank]))
    return (*map(words, cells), *(_chunk(chunk.sizes[rank], chunk.kept[rank]) for chunk in plan.chunks))


def _chunk(size: int, kept: bool) -> Text:
    return words(str(size)) if kept else words(muted(f"{size} (dropped)"))
