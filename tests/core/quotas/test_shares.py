"""The division of a quota between nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.quotas.shares import FLOOR, divide

demands_drawn = st.dictionaries(
    st.integers(1, 20), st.floats(0, 1e9, allow_nan=False), min_size=1, max_size=8
)


@given(st.floats(1, 1e9), demands_drawn, st.integers(0, 5))
def test_the_parts_are_the_quota_and_more_only_by_the_floors(
    quota: float, demands: dict[int, float], idle_count: int
) -> None:
    node_count = len(demands) + idle_count
    parts = divide(quota, demands, node_count=node_count)
    assert parts.keys() == demands.keys()
    assert quota * 0.999999 <= sum(parts.values()) <= quota * (1 + FLOOR) * 1.000001
    assert min(parts.values()) >= FLOOR * quota / node_count * 0.999999


@given(st.floats(1, 1e9), demands_drawn)
def test_nobody_gets_less_than_another_who_wants_no_more(
    quota: float, demands: dict[int, float]
) -> None:
    parts = divide(quota, demands, node_count=len(demands))
    for node, demand in demands.items():
        fair = quota / len(demands)
        assert parts[node] >= min(demand, fair) * 0.999999
        for other, others_demand in demands.items():
            if demand >= others_demand:
                assert parts[node] >= parts[other] * 0.999999


@pytest.mark.parametrize(
    ("demands", "parts"),
    [
        ({1: 0, 2: 0}, {1: 50, 2: 50}),
        ({1: 10, 2: 20}, {1: 45, 2: 55}),
        ({1: 10, 2: 500}, {1: 10, 2: 90}),
        ({1: 500, 2: 500}, {1: 50, 2: 50}),
        ({1: 0, 2: 500}, {1: 5, 2: 100}),
    ],
)
def test_what_one_does_not_want_is_for_the_others(
    demands: dict[int, float], parts: dict[int, float]
) -> None:
    assert divide(100, demands, node_count=2) == parts
