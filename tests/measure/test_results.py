"""Which rows count, and what is refused a ratio."""

import pytest

from moe_core.measure.floor import Bound, Floor
from moe_core.measure.results import Cell, Mode, Role, Row, Timing

FLOOR = Floor(experts=2, weight_bytes=1, activation_bytes=1, flop=1, microseconds=10, bound=Bound.BYTES)


def row(name, role, microseconds, error=1e-3, tolerance=8e-3):
    timing = Timing(mode=Mode.EAGER, median=microseconds, p10=microseconds, p90=microseconds, rounds=5, calls=2)
    return Row(name=name, role=role, timing=timing, error=error, tolerance=tolerance)


def cell(*rows):
    return Cell(shape="s", tokens=1, floor=FLOOR, rows=rows)


def test_ratio_is_against_the_fastest_peer_that_is_right():
    ours = row("ours", Role.CANDIDATE, 20)
    found = cell(ours, row("slow", Role.PEER, 60), row("fast", Role.PEER, 40), row("wrong", Role.PEER, 1, error=0.5))
    assert found.ratio(ours) == 2
    assert found.share(ours) == 0.5
    assert [r.name for r in found.of_role(Role.PEER)] == ["wrong", "fast", "slow"]


@pytest.mark.parametrize("changes", [{"error": 0.5}, {"error": None}, {"tolerance": None}])
def test_no_ratio_for_a_wrong_answer(changes):
    ours = row("ours", Role.CANDIDATE, 20, **changes)
    found = cell(ours, row("peer", Role.PEER, 40))
    assert ours.is_wrong
    assert found.ratio(ours) is None
    assert found.best(Role.CANDIDATE) is None


def test_what_did_not_run_is_not_wrong():
    idle = Row(name="idle", role=Role.CANDIDATE, reason="no GPU")
    found = cell(idle, row("peer", Role.PEER, 40))
    assert not idle.is_wrong
    assert found.ratio(idle) is None
    assert found.share(idle) is None


def test_no_ratio_without_a_peer_and_for_peers():
    ours, peer = row("ours", Role.CANDIDATE, 20), row("peer", Role.PEER, 40)
    assert cell(ours).ratio(ours) is None
    assert cell(ours, peer).ratio(peer) is None
