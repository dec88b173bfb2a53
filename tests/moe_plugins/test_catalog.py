"""Lints over the whole first-party catalog."""

import tomllib
from collections import Counter
from pathlib import Path

import pytest

from moe_core.contract.facts import is_fact_name
from moe_core.contract.vocabulary import CandidateKind, SchedulerKind, TokenLayout

BEST_FIRST = tomllib.loads((Path(__file__).parents[1] / "data" / "moe_plugins" / "upstream_order.toml").read_text())
UPSTREAM_FAMILIES = {
    "CUTLASS": 12,
    "TRTLLM": 12,
    "CUTEDSL": 4,
    "CUTEDSL_FC12": 1,
    "DEEPGEMM": 1,
    "DENSEGEMM": 1,
    "MARLIN": 2,
    "MEGAMOE_CUTEDSL": 1,
    "MEGAMOE_DEEPGEMM": 1,
    "PRIMS_TS": 1,
    "TRITON": 1,
    "VANILLA": 1,
}
STRATEGY_FAMILIES = {
    "ALLGATHER", "ALLTOALL", "DEEPEP", "DEEPEPLOWLATENCY", "EXPERT_MAJOR", "NCCL_EP", "NONE", "NVLINK_ONE_SIDED",
    "NVLINK_TWO_SIDED",
}  # fmt: skip


@pytest.fixture(scope="module")
def candidates(catalog):
    return catalog.candidates


def of_kind(candidates, kind):
    return [c for c in candidates if c.kind == kind]


@pytest.mark.parametrize("kind", BEST_FIRST)
def test_upstream_order(candidates, kind):
    upstream = sorted((c for c in of_kind(candidates, kind) if c.upstream), key=lambda c: -c.priority)
    assert [c.identity for c in upstream] == BEST_FIRST[kind]
    assert len({c.priority for c in upstream}) == len(upstream)


def test_identities_are_unique(candidates):
    assert len({c.identity for c in candidates}) == len(candidates)


def test_segment_vocabularies_are_disjoint(candidates):
    segments = zip(*(c.identity.split(".") for c in candidates), strict=True)
    places = Counter(token for vocabulary in map(set, segments) for token in vocabulary)
    assert [token for token, count in places.items() if count > 1] == []


def test_families(candidates):
    upstream = [c for c in of_kind(candidates, CandidateKind.BACKEND) if c.upstream]
    assert Counter(c.family for c in upstream) == UPSTREAM_FAMILIES
    assert {c.family for c in of_kind(candidates, CandidateKind.COMMUNICATION)} == STRATEGY_FAMILIES


def test_only_mega_moe_and_its_slow_twin_exchange_tokens_themselves(candidates):
    fused = {c.family for c in candidates if c.scheduler_kind is SchedulerKind.FUSED_COMM}
    assert fused == {"MEGAMOE_CUTEDSL", "MEGAMOE_DEEPGEMM", "FUSED_ALLTOALL"}


def test_only_expert_major_rows_are_weighted_by_combine(candidates):
    for strategy in of_kind(candidates, CandidateKind.COMMUNICATION):
        assert strategy.finalize_before_combine == (strategy.layouts == (TokenLayout.TOKEN_MAJOR,)), strategy.identity
    expert_major = [c for c in of_kind(candidates, CandidateKind.COMMUNICATION) if not c.finalize_before_combine]
    assert {c.family for c in expert_major} == {"DEEPEPLOWLATENCY", "EXPERT_MAJOR"}


def test_every_fact_exists(candidates):
    conditions = (
        condition
        for candidate in candidates
        for requirement in (*candidate.requirements, *candidate.load_requirements)
        for condition in (requirement, *requirement.when, *requirement.unless)
    )
    assert [c.fact for c in conditions if not is_fact_name(c.fact)] == []


def test_everybody_precedes_strangers(candidates):
    assert min(c.priority for c in candidates) > 0


def test_what_has_an_adapter_names_a_first_party_factory(candidates):
    factories = [c.factory for c in candidates if c.factory is not None]
    assert factories
    assert all(f.startswith("moe_plugins.") for f in factories)
