"""Measured timings, handed to the resolver as data."""

from __future__ import annotations

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
