"""Measured timings, handed to the resolver as data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import Field

from moe_core.contract.base import SCHEMA_VERSION, Frozen

PositiveFloat = Annotated[float, Field(gt=0)]


class Measurement(Frozen):
    """The time of one candidate for one geometry on one machine.

    `problem` and `environment` are fingerprints; a measurement of another problem, machine or partition is ignored.
    """

    identity: str
    problem: str
    environment: str
    ep_size: int = 1
    tp_size: int = 1
    tokens: Annotated[int, Field(gt=0)]
    """Tokens per rank."""
    microseconds: PositiveFloat


class Evidence(Frozen):
    """Measurements, with where they come from."""

    schema_version: Literal[1] = SCHEMA_VERSION
    source: str = ""
    measurements: tuple[Measurement, ...] = ()


class EvidenceMismatchError(ValueError):
    """Ranks measured different sets; the message says what each of them lacks."""


def merge_evidence(ranks: Sequence[Evidence]) -> Evidence:
    """One evidence of what each rank measured, in order of rank: the slowest rank's time counts, for all wait for it.

    Within a rank, the fastest of repeated measurements counts. Pure, so ranks that gathered the same get the same.

    Raises:
        EvidenceMismatchError: not every rank measured the same, or no rank is given.
    """
    if not ranks:
        raise EvidenceMismatchError("found no rank's evidence, needed that of every rank; try: gather before merging")
    times = [_fastest(rank.measurements) for rank in ranks]
    everything = sorted({key for of_rank in times for key in of_rank})
    lacking = {rank: lacks for rank, found in enumerate(times) if (lacks := [k for k in everything if k not in found])}
    if lacking:
        raise EvidenceMismatchError(_mismatch(lacking, len(ranks)))
    return Evidence(
        source="; ".join(dict.fromkeys(rank.source for rank in ranks if rank.source)),
        measurements=tuple(
            Measurement(
                identity=identity, problem=problem, environment=environment, ep_size=ep_size, tp_size=tp_size,
                tokens=tokens, microseconds=max(found[key] for found in times),
            )
            for key in everything
            for identity, tokens, problem, environment, ep_size, tp_size in (key,)
        ),
    )  # fmt: skip


_Key = tuple[str, int, str, str, int, int]


def _fastest(measurements: Iterable[Measurement]) -> dict[_Key, float]:
    fastest: dict[_Key, float] = {}
    for m in measurements:
        key = (m.identity, m.tokens, m.problem, m.environment, m.ep_size, m.tp_size)
        fastest[key] = min(m.microseconds, fastest.get(key, m.microseconds))
    return fastest


def _mismatch(lacking: dict[int, list[_Key]], num_ranks: int) -> str:
    lines = [f"found different measurements on {num_ranks} ranks, needed the same on every rank:"]
    for rank, keys in lacking.items():
        identity, tokens, problem, environment, ep_size, tp_size = keys[0]
        more = f", and {len(keys) - 1} more" if len(keys) > 1 else ""
        lines.append(
            f"  rank {rank} lacks {identity} at {tokens} tokens (problem {problem}, environment {environment}, "
            f"ep {ep_size}, tp {tp_size}){more}"
        )
    return "\n".join([*lines, "  try: measure on all ranks together, by one report"])
