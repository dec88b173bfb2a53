"""How experts and their width are split over ranks."""

import pytest

from moe_core.contract.partition import width_share


@pytest.mark.parametrize(
    ("size", "ranks", "shares"),
    [(12, 3, [(0, 4), (4, 8), (8, 12)]), (10, 3, [(0, 4), (4, 8), (8, 10)]), (5, 1, [(0, 5)])],
)
def test_shares_of_a_width_follow_each_other(size, ranks, shares):
    assert [width_share(size, rank, ranks) for rank in range(ranks)] == shares


def test_ranks_that_do_not_exist_or_get_nothing():
    with pytest.raises(ValueError, match="rank 2 is not one of 2"):
        width_share(8, 2, 2)
    with pytest.raises(ValueError, match="shares of 2 leave nothing of 4 for rank 2 of 3"):
        width_share(4, 2, 3)
