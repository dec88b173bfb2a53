"""What ranks measured becomes one evidence, which is the same on all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe_core.contract.evidence import Evidence, EvidenceMismatchError, Measurement, merge_evidence


def measured(identity="a.b.c.none", microseconds=1.0, **fields):
    fields = {"problem": "p", "environment": "e", "tokens": 8, **fields}
    return Measurement(identity=identity, microseconds=microseconds, **fields)


def evidence(*measurements, source=""):
    return Evidence(source=source, measurements=measurements)


@pytest.mark.parametrize(
    "other",
    [
        {"identity": "x.y.z.none"},
        {"problem": "q"},
        {"environment": "f"},
        {"ep_size": 2},
        {"tp_size": 2},
        {"tokens": 16},
    ],
)
def test_the_slowest_rank_counts_for_each_question_apart(other):
    ranks = [evidence(measured(microseconds=us), measured(microseconds=9.0 - us, **other)) for us in (1.0, 3.0, 2.0)]
    merged = merge_evidence(ranks)
    assert set(merged.measurements) == {measured(microseconds=3.0), measured(microseconds=8.0, **other)}


def test_the_fastest_of_a_ranks_repeats_counts():
    ranks = [evidence(measured(microseconds=5.0), measured(microseconds=2.0)), evidence(measured(microseconds=3.0))]
    assert merge_evidence(ranks).measurements == (measured(microseconds=3.0),)


@given(st.lists(st.permutations([("a", 8), ("a", 16), ("b", 8), ("b", 16)]), min_size=1, max_size=4), st.data())
def test_order_of_measuring_and_of_ranks_never_matters(orders, data):
    time = {rank: data.draw(st.floats(1, 100)) for rank in range(len(orders))}
    ranks = [
        evidence(*(measured(f"{name}.b.c.none", time[rank], tokens=tokens) for name, tokens in order))
        for rank, order in enumerate(orders)
    ]
    merged = merge_evidence(ranks)
    assert merge_evidence(ranks[::-1]).measurements == merged.measurements
    assert [m.microseconds for m in merged.measurements] == [max(time.values())] * 4
    assert merge_evidence([merged, merged]) == merged


def test_sources_are_kept_once_each():
    ranks = [evidence(measured(), source=source) for source in ("node 0", "", "node 1", "node 0")]
    assert merge_evidence(ranks).source == "node 0; node 1"


def test_ranks_that_measured_different_sets_are_named_with_what_they_lack():
    extra = measured("x.y.z.none", tokens=64, ep_size=2)
    ranks = [evidence(measured(), extra), evidence(measured()), evidence(measured(), extra), evidence()]
    with pytest.raises(EvidenceMismatchError) as error:
        merge_evidence(ranks)
    assert str(error.value).splitlines() == [
        "found different measurements on 4 ranks, needed the same on every rank:",
        "  rank 1 lacks x.y.z.none at 64 tokens (problem p, environment e, ep 2, tp 1)",
        "  rank 3 lacks a.b.c.none at 8 tokens (problem p, environment e, ep 1, tp 1), and 1 more",
        "  try: measure on all ranks together, by one report",
    ]


def test_no_rank_is_an_error():
    with pytest.raises(EvidenceMismatchError, match="found no rank's evidence"):
        merge_evidence([])
