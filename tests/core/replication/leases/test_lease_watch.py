"""However many brokers read each other's leases, they do not fill a key of the store."""

from __future__ import annotations

import dataclasses
import heapq
import random
from collections import Counter
from collections.abc import Callable, Set

import pytest
from tidelog_core.metadata.records import Broker
from tidelog_core.replication.leases.lease_watch import (
    UNITS_PER_S,
    WATCHERS_MIN,
    ReadingPace,
    is_watcher,
    reading_units,
    unhurried_interval_ms,
)

from tests.support.replication_cluster import TIMES, make_brokers

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


# -- all brokers together --


def units_by_second(
    brokers: dict[int, Broker],
    is_live: Callable[[int, float], bool],
    *,
    lost: Set[int] = frozenset(),
    seconds: int,
    seed: int,
) -> dict[int, int]:
    """Return what the readings of all but the lost take, second by second.

    ``is_live`` tells what a reading at that time shows of a broker. Before the start everyone
    has been alive for long.
    """
    paces: dict[int, ReadingPace] = {}
    due: list[tuple[float, int]] = []
    print(f"seed {seed}")
    chance = random.Random(seed)
    for broker_id in brokers.keys() - lost:
        pace = ReadingPace(
            broker_id, watching_ms=HURRIED_MS, renew_ms=TIMES.renew_ms, chance=chance
        )
        for started_ms in (-60_000, -50_000):
            pace.on_reading(brokers, lambda _: True, started_ms=started_ms)
        paces[broker_id] = pace
        due.append((chance.random() * pace.next_interval_ms(brokers), broker_id))
    heapq.heapify(due)
    units = Counter[int]()
    while due[0][0] < seconds * 1000:
        now_ms, broker_id = heapq.heappop(due)
        units[int(now_ms // 1000)] += reading_units(len(brokers))
        pace = paces[broker_id]
        pace.on_reading(brokers, lambda b, now_ms=now_ms: is_live(b, now_ms), started_ms=now_ms)
        heapq.heappush(due, (now_ms + pace.next_interval_ms(brokers), broker_id))
    return units


@pytest.mark.parametrize("rack_count", [1, 3])
def test_readings_that_show_nobody_alive_make_no_crowd(rack_count: int) -> None:
    """The store answers again after longer than a lease, and all renew within an interval."""
    brokers, chance = in_racks(1000, rack_count), random.Random(8)
    back_ms = {b: chance.uniform(0, TIMES.renew_ms) for b in brokers}
    units = units_by_second(brokers, lambda b, ms: ms >= back_ms[b], seconds=60, seed=rack_count)
    assert max(units.values()) < KEY_READ_UNITS
    # A minute later it is as it was before.
    steady = WATCHERS_MIN * reading_units(1000) * 1000 / HURRIED_MS + UNITS_PER_S
    assert sum(units[second] for second in range(50, 60)) < 10 * steady * 1.2


def test_where_all_watchers_are_lost_others_watch_within_two_unhurried_readings() -> None:
    brokers = in_racks(999, 3)
    lost = watchers(brokers, set())
    seconds = round(2.4 * unhurried_interval_ms(len(brokers)) / 1000)
    units = units_by_second(
        brokers, lambda b, _: b not in lost, lost=lost, seconds=seconds + 10, seed=5
    )
    assert max(units.values()) < KEY_READ_UNITS
    watching = WATCHERS_MIN * reading_units(999) * 1000 / HURRIED_MS
    assert sum(units[second] for second in range(10)) < 10 * UNITS_PER_S * 1.4
    late = sum(units[second] for second in range(seconds, seconds + 10))
    assert late > 10 * (watching + 0.6 * UNITS_PER_S)


def test_a_broker_reads_like_a_watcher_once_two_readings_have_shown_it_to_be_one() -> None:
    brokers = in_racks(1000, 3)
    pace = ReadingPace(4, watching_ms=500, renew_ms=3_000, chance=random.Random(1))
    unhurried_ms = unhurried_interval_ms(1000)
    pace.on_reading(brokers, lambda _: True, started_ms=0)
    assert pace.next_interval_ms(brokers) >= 0.8 * unhurried_ms
    pace.on_reading(brokers, lambda b: b > 3, started_ms=40_000)
    assert pace.next_interval_ms(brokers) == 3_000
    pace.on_reading(brokers, lambda b: b > 3, started_ms=43_000)
    assert pace.next_interval_ms(brokers) == 500
    pace.on_reading(brokers, lambda _: True, started_ms=43_500)
    assert pace.next_interval_ms(brokers) >= 0.8 * unhurried_ms


def test_the_more_brokers_are_before_it_the_later_a_broker_looks_whether_it_watches() -> None:
    brokers = in_racks(1000, 3)
    pauses_ms = []
    for broker_id in (4, 100, 300):
        pace = ReadingPace(broker_id, watching_ms=500, renew_ms=3_000, chance=random.Random(1))
        pace.on_reading(brokers, lambda _: False, started_ms=0)
        pauses_ms.append(pace.next_interval_ms(brokers))
    assert pauses_ms[0] == 3_000
    assert pauses_ms[1] < pauses_ms[2] < 1.2 * unhurried_interval_ms(1000)


def test_a_small_cluster_is_read_by_everyone_whatever_it_knows() -> None:
    pace = ReadingPace(60, watching_ms=500, renew_ms=3_000, chance=random.Random(1))
    assert pace.next_interval_ms(in_racks(60, 3)) == 500
