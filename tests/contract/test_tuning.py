"""A tuning that misses its table says what it misses."""

import pytest
from pydantic import ValidationError

from moe_core.contract.tuning import Tuning


@pytest.mark.parametrize("source", ["nearest", "cost_model"])
def test_a_miss_says_what_is_missing(source):
    with pytest.raises(ValidationError, match=f"source is {source}, so note must say what the table lacks"):
        Tuning(source=source, key="a GPU")
    assert Tuning(source=source, key="a GPU", note="no entry for another GPU").is_miss


def test_a_hit_needs_no_note():
    assert not Tuning(source="table", key="a GPU").is_miss


def test_no_time_is_unknown_and_not_zero():
    with pytest.raises(ValidationError, match="greater than 0"):
        Tuning(source="table", key="a GPU", microseconds=0)
