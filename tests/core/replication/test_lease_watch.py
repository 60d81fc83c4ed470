"""However many brokers read each other's leases, they do not fill a key of the store."""

from __future__ import annotations

import dataclasses

import pytest
from tidelog_core.metadata.records import Broker
from tidelog_core.replication.lease_watch import (
    UNITS_PER_S,
    WATCHERS_MIN,
    is_watcher,
    reading_units,
    unhurried_interval_ms,
)

from tests.core.replication.cluster import make_brokers

KEY_READ_UNITS = 3000  # a second. Source: DynamoDB developer guide, partition keys
HURRIED_MS = 500
NORMAL_MS_MAX = 1000  # until a lapse of up to 100 brokers is seen by all, as it has always been


def in_racks(count: int, rack_count: int) -> dict[int, Broker]:
    """Return brokers whose ids are in runs by rack, as a deployment gives them."""
    per_rack = -(-count // rack_count)
    return {
        b: dataclasses.replace(broker, rack=f"r{(b - 1) // per_rack}")
        for b, broker in make_brokers(*range(1, count + 1)).items()
    }


def watchers(brokers: dict[int, Broker], dead: set[int]) -> set[int]:
    return {b for b in brokers if is_watcher(b, brokers, lambda b: b not in dead)} - dead


@pytest.mark.parametrize("count", [120, 187, 300, 1000, 2000])
@pytest.mark.parametrize("rack_count", [1, 2, 3])
def test_all_readings_together_leave_a_key_room(count: int, rack_count: int) -> None:
    brokers = in_racks(count, rack_count)
    some = watchers(brokers, set())
    assert WATCHERS_MIN <= len(some) <= WATCHERS_MIN + 1
    units = len(some) * reading_units(count) * 1000 / HURRIED_MS
    units += (count - len(some)) * reading_units(count) * 1000 / unhurried_interval_ms(count)
    assert units < 0.9 * KEY_READ_UNITS
    renewals = count / 3
    assert renewals < 1000


def test_up_to_a_hundred_brokers_all_read_in_time() -> None:
    assert unhurried_interval_ms(100) <= HURRIED_MS
    assert unhurried_interval_ms(120) < NORMAL_MS_MAX
    assert unhurried_interval_ms(1000) == 1000 * 1000 * reading_units(1000) / UNITS_PER_S


def test_a_lost_rack_leaves_the_watchers_of_the_others() -> None:
    brokers = in_racks(999, 3)
    before = watchers(brokers, set())
    for first in (1, 334, 667):
        lost = set(range(first, first + 333))
        left = before - lost
        assert len(left) == 6
        assert len({brokers[b].rack for b in left}) == 2


def test_others_watch_where_watchers_are_gone() -> None:
    brokers = in_racks(30, 3)
    before = watchers(brokers, set())
    after = watchers(brokers, before)
    assert len(after) == len(before)
    assert not after & before


def test_who_is_not_registered_does_not_watch() -> None:
    assert not is_watcher(99, in_racks(30, 3), lambda _: True)
