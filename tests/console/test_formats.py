from __future__ import annotations

import pytest
from tidelog_console import formats


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "$0"),
        (1234.5, "$1,234"),
        (12.345, "$12.35"),
        (0.19464, "$0.195"),
        (0.00014, "$0.000140"),
    ],
)
def test_money_has_the_digits_that_count(value: float, shown: str) -> None:
    assert formats.dollars(value) == shown


def test_tiny_money_and_none() -> None:
    assert formats.dollars(1e-12) == "under $0.000001"
    assert formats.dollars(None) == "–"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (200 * 1024, "200 KiB"), (-1, "–")],
)
def test_sizes(value: float, shown: str) -> None:
    assert formats.size(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 s"),
        (0.3, "0.3 s"),
        (59, "59 s"),
        (600, "10 min"),
        (10_000, "2.8 h"),
        (900_000, "10.4 d"),
    ],
)
def test_durations(value: float, shown: str) -> None:
    assert formats.seconds(value) == shown


def test_times_that_do_not_exist_are_none() -> None:
    assert formats.moment(0) == "1970-01-01 00:00:00 UTC"
    assert formats.moment(1e30) == "–"
    assert formats.moment(-1) == "–"
