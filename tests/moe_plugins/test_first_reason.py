"""What each declared candidate takes, and which reason comes first when it does not: tables in tests/data."""

import tomllib
from pathlib import Path

import pytest

from moe_core.contract.vocabulary import QuantAlgo

DATA = Path(__file__).parents[1] / "data" / "moe_plugins"
TABLES = ("upstream_backends", "packages", "strategies", "routing", "experts")
ROWS = {
    identity: row for table in TABLES for identity, row in tomllib.loads((DATA / f"{table}.toml").read_text()).items()
}


def said(rejection):
    return f"{rejection.reason} {rejection.fact}"


def taken():
    return [
        pytest.param(identity, changes, id=f"{identity}-{index}")
        for identity, row in ROWS.items()
        for index, changes in enumerate(row["accepts"])
    ]


def alone(*kinds):
    """Every violation on its own."""
    return [
        pytest.param(identity, {**row["accepts"][0], **violation}, first, id=f"{identity}-{kind}-{index}")
        for identity, row in ROWS.items()
        for kind in kinds
        for index, (violation, first) in enumerate(row.get(kind, []))
    ]


def together():
    """Every violation with all that come after it in upstream's order; where two disagree, the earlier counts."""
    found = []
    for identity, row in ROWS.items():
        changes = {}
        for index, (violation, first) in reversed(list(enumerate(row.get("order", [])))):
            changes = {**changes, **violation}
            found.append(pytest.param(identity, {**row["accepts"][0], **changes}, first, id=f"{identity}-{index}"))
    return found


@pytest.mark.parametrize(("identity", "changes"), taken())
def test_takes(identity, changes, answer):
    eligibility = answer(identity, changes)
    assert [said(r) for r in eligibility.rejections] == []


@pytest.mark.parametrize(("identity", "changes", "first"), together())
def test_gates_are_in_order(identity, changes, first, answer):
    assert said(answer(identity, changes).rejections[0]) == first


@pytest.mark.parametrize(("identity", "changes", "first"), alone("order", "refuses"))
def test_one_violation_is_enough(identity, changes, first, answer):
    assert first in [said(r) for r in answer(identity, changes).rejections]


@pytest.mark.parametrize(("identity", "changes", "first"), alone("refuses"))
def test_first_reason(identity, changes, first, answer):
    assert said(answer(identity, changes).rejections[0]) == first


@pytest.mark.parametrize("identity", [i for i in ROWS if not i.endswith(".any")])
def test_takes_no_other_format(identity, answer):
    own = identity.rpartition(".")[2].upper()
    for quant in set(QuantAlgo) - {own}:
        other = {**ROWS[identity]["accepts"][0], "quant": quant}
        assert "quant_unsupported quant" in [said(r) for r in answer(identity, other).rejections], quant


def test_every_candidate_without_an_adapter_is_in_a_table(catalog):
    assert {c.identity for c in catalog.candidates if c.factory is None} - ROWS.keys() == set()
    assert ROWS.keys() - {c.identity for c in catalog.candidates} == set()
