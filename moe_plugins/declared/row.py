"""The two forms of a row in this catalog: a backend, and a communication strategy. None has an adapter."""

from __future__ import annotations

from moe_core.contract.candidate import (
    AdjustmentRule,
    MoEActivationSupport,
    MoECandidate,
    MoEInputRequirement,
    MoEStaticCapability,
)
from moe_core.contract.requirement import Requirement
from moe_core.contract.vocabulary import CandidateKind, QuantAlgo, RoutingSplit, SchedulerKind, TokenLayout
from moe_plugins.declared.order import PRIORITY

Requirements = tuple[Requirement, ...]

NO_ABILITIES = MoEStaticCapability()
NO_INPUTS = MoEInputRequirement()

EITHER_LAYOUT = (TokenLayout.TOKEN_MAJOR, TokenLayout.EXPERT_MAJOR)
"""Kernels that skip any id out of range take expert-major rows too: one id a row, the number of slots where unused."""


def backend(
    identity: str,
    family: str,
    title: str,
    requirements: Requirements,
    *,
    activation: MoEActivationSupport,
    upstream: bool = True,
    load: Requirements = (),
    able: MoEStaticCapability = NO_ABILITIES,
    inputs: MoEInputRequirement = NO_INPUTS,
    adjustments: tuple[AdjustmentRule, ...] = (),
    layouts: tuple[TokenLayout, ...] = (TokenLayout.TOKEN_MAJOR,),
    routing_split: RoutingSplit = RoutingSplit.SEPARATED,
    scheduler_kind: SchedulerKind = SchedulerKind.EXTERNAL_COMM,
) -> MoECandidate:
    """A backend; `load` are the limits that bite only when its weights are laid out."""
    return MoECandidate(
        identity=identity,
        kind=CandidateKind.BACKEND,
        family=family,
        title=title,
        priority=PRIORITY[identity],
        upstream=upstream,
        requirements=requirements,
        load_requirements=load,
        capabilities=able,
        input_requirement=inputs,
        activation=activation,
        adjustments=adjustments,
        layouts=layouts,
        routing_split=routing_split,
        scheduler_kind=scheduler_kind,
    )


def strategy(
    identity: str,
    family: str,
    title: str,
    requirements: Requirements,
    *,
    upstream: bool = True,
    layout: TokenLayout = TokenLayout.TOKEN_MAJOR,
    post_quant: tuple[QuantAlgo, ...] | None = None,
    max_chunks: int | None = None,
    bounded_tokens: bool = False,
) -> MoECandidate:
    """A communication strategy; the expert-major layout is weighted by combine, all others before it."""
    return MoECandidate(
        identity=identity,
        kind=CandidateKind.COMMUNICATION,
        family=family,
        title=title,
        priority=PRIORITY[identity],
        upstream=upstream,
        requirements=requirements,
        layouts=(layout,),
        post_quant=post_quant,
        finalize_before_combine=layout is TokenLayout.TOKEN_MAJOR,
        max_chunks=max_chunks,
        bounded_tokens=bounded_tokens,
    )
