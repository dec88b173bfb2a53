"""Small phrases."""

import pytest

from moe_core.explain.phrases import counted, duration, ranges, size


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((), ""), ((3,), "3"), ((3, 4, 5), "3-5"), ((0, 3, 4, 9), "0, 3-4, 9"), ((5, 4, 4), "4-5")],
)
def test_ranges(numbers, text):
    assert ranges(numbers) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (85_899_345_920, "80 GiB"),
        (2**50, "1048576 GiB"),
    ],
)
def test_size(num_bytes, text):
    assert size(num_bytes) == text


@pytest.mark.parametrize(("us", "text"), [(0.5, "0.5 us"), (12.34, "12.3 us"), (4567.0, "4.57 ms"), (2.5e6, "2.5 s")])
def test_duration(us, text):
    assert duration(us) == text


def test_counted():
    assert [counted(n, "layer") for n in (0, 1, 2)] == ["0 layers", "1 layer", "2 layers"]
