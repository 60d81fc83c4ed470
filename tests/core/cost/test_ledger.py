"""The ledger on SQLite, and how its sums do not depend on who counted what, and when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_core.config import NodeConfig
from tidelog_core.cost.counts import HOUR_MS, OTHER_TOPICS, by_topic
from tidelog_core.cost.entries import Addition, Limits, Tally, limited
from tidelog_core.cost.ledger import add, read_hours, roll_up
from tidelog_core.cost.overview import read_overview
from tidelog_core.cost.prices import list_prices
from tidelog_core.cost.report import (
    Period,
    calendar_day,
    calendar_month,
    period_start_ms,
    report_of,
)
from tidelog_core.metadata.cost_records import COST_HOUR_COLLECTION, CostHour, cost_hour_key
from tidelog_core.metadata.records import put
from tidelog_core.metadata.store import Body, ItemKey, MetadataStore, Write
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore

from tests.contracts.cost_ledger import (
    LIMITS,
    NOW_HOUR,
    NOW_MS,
    CostLedgerContract,
    random_tally,
    without_standing,
)
from tests.contracts.metadata_update import Open
from tests.support.memory_store import MemoryMetadataStore

PRICES = list_prices()


class TestOnSqlite(CostLedgerContract):
    @pytest.fixture
    def open(self, tmp_path: Path) -> Open:
        @asynccontextmanager
        async def open_store() -> AsyncIterator[MetadataStore]:
            store = SqliteMetadataStore(tmp_path / "metadata.db")
            try:
                yield store
            finally:
                await store.close()

        return open_store


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), parts=st.integers(1, 40), nodes=st.integers(1, 5))
def test_the_same_counts_cost_the_same_however_they_are_split(
    seed: int, parts: int, nodes: int
) -> None:
    """Over nodes, minutes, hours and restarts: the dollars are equal, not only close."""
    rng = random.Random(seed)
    tallies = [random_tally(rng) for _ in range(parts)]

    async def spend(node_count: int) -> tuple[float, dict[str, int]]:
        store = MemoryMetadataStore(latency=0)
        for number, tally in enumerate(tallies):
            hour = NOW_HOUR - rng.randrange(24) if node_count > 1 else NOW_HOUR
            writer = f"node-{rng.randrange(node_count)}"
            addition = Addition(f"t-{number}", hour, writer, tally)
            assert await add(store, addition, Limits(PRICES, 100), now_hour=hour)
        await roll_up(store, LIMITS, now_hour=NOW_HOUR)
        overview = await read_overview(store, PRICES, NodeConfig(), now_ms=NOW_MS)
        counts = without_standing(overview.counted[Period.DAY].counts)
        return PRICES.dollars(counts), counts

    async def both() -> None:
        assert await spend(1) == await spend(nodes)

    asyncio.run(both())


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), topics_max=st.integers(1, 6))
def test_topics_that_are_left_out_are_counted_with_the_others(seed: int, topics_max: int) -> None:
    rng = random.Random(seed)
    tally = random_tally(rng)
    for _ in range(5):
        tally.merge(random_tally(rng))
    few = by_topic(limited([tally.topics], Limits(PRICES, topics_max)))
    assert len(few.keys() - {OTHER_TOPICS}) <= topics_max
    everything = by_topic(tally.topics)
    assert sum((one for one in few.values()), start=type(tally.counts)()) == sum(
        (one for one in everything.values()), start=type(tally.counts)()
    )
    kept = [PRICES.dollars(few[topic]) for topic in few.keys() - {OTHER_TOPICS}]
    left = [PRICES.dollars(everything[topic]) for topic in everything.keys() - few.keys()]
    assert min(kept, default=0) >= max(left, default=0)


def test_what_a_newer_program_counts_is_shown_without_a_price() -> None:
    counts = {"object-put": 1_000, "quantum-put": 7, "machine:": 1}
    charges = {charge.item.name: charge for charge in PRICES.charges(counts)}
    assert charges.keys() == counts.keys()
    assert (charges["quantum-put"].units, charges["quantum-put"].is_priced) == (7, False)
    assert PRICES.dollars(counts) == 0.005


def test_tallies_are_merged_by_item_and_topic() -> None:
    tally, other = Tally(), Tally()
    tally.add("object-put", 3, topic="a")
    kept = tally.copy()
    other.add("object-put", 2, topic="b")
    other.add("metadata-read", 0)
    tally.merge(other)
    assert (tally.counts, tally.topics) == (
        {"object-put": 5},
        {"a/object-put": 3, "b/object-put": 2},
    )
    assert (kept.counts, kept.topics) == ({"object-put": 3}, {"a/object-put": 3})


async def test_a_damaged_item_hides_no_other(tmp_path: Path) -> None:
    store = SqliteMetadataStore(tmp_path / "metadata.db")
    key = ItemKey("cost-hour", f"{NOW_HOUR - 9:010d}-node-2")
    await store.commit([Write(key, {"hour": "no"}, 0, is_logged=False)])
    for hour, count in ((NOW_HOUR - 1, -5), (10**9, 7)):  # below 0, and of the far future
        body = {"hour": hour, "writer": "node-3", "counts": {"object-put": count}}
        whole: Body = {**body, "topic_counts": {}, "added": []}
        await store.commit([Write(cost_hour_key.make(hour, "node-3"), whole, 0, is_logged=False)])
    for hour in (NOW_HOUR - 9, NOW_HOUR):
        tally = Tally()
        tally.add("object-put", 1)
        assert await add(store, Addition(f"{hour}", hour, "node-1", tally), LIMITS, now_hour=hour)
    assert await roll_up(store, LIMITS, now_hour=NOW_HOUR) == 1
    overview = await read_overview(store, PRICES, NodeConfig(), now_ms=NOW_MS)
    for period in (Period.DAY, Period.MONTH):
        assert overview.counted[period].counts["object-put"] == 2
    await store.close()


async def test_other_tasks_run_while_a_large_ledger_is_read() -> None:
    store = MemoryMetadataStore(latency=0)
    counts = {f"topic-{number}/object-put": 1 for number in range(900)}
    for number in range(300):
        hour = CostHour(hour=NOW_HOUR, writer=f"node-{number}", counts={}, topic_counts=counts)
        await store.commit([put(hour, is_logged=False)])
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    await store.list(COST_HOUR_COLLECTION)
    listing, turns = turns, 0
    assert len(await read_hours(store, first_hour=0)) == 300
    assert turns > listing + 1
    task.cancel()


def test_periods_begin_with_whole_hours_and_calendar_months() -> None:
    assert period_start_ms(Period.HOUR, NOW_MS) == (NOW_HOUR - 1) * HOUR_MS
    assert period_start_ms(Period.DAY, NOW_MS) == (NOW_HOUR - 24) * HOUR_MS
    assert calendar_month(NOW_MS) == (1_793_491_200_000, 1_796_083_200_000)  # 30 days
    december = calendar_month(1_796_083_200_000)
    assert december[1] - december[0] == 31 * 24 * HOUR_MS
    assert calendar_day(NOW_MS) == (1_795_651_200_000, 1_795_737_600_000)


async def test_what_stands_there_is_charged_from_the_first_hour_of_the_ledger() -> None:
    store = MemoryMetadataStore(latency=0)
    tally = Tally()
    tally.add("object-put", 1_000)
    addition = Addition("t", NOW_HOUR - 10, "node-1", tally)
    assert await add(store, addition, LIMITS, now_hour=NOW_HOUR - 10)
    overview = await read_overview(store, PRICES, NodeConfig(), now_ms=NOW_MS)
    report = report_of(overview.counted[Period.DAY], PRICES, topics_max=3)
    charges = {charge.item.name: charge for charge in report.charges}
    assert charges["object-put"].dollars == 0.005
    assert charges["balancer"].units == 10.5  # hours, from then to now
    assert charges["endpoint"].dollars == 10.5 * 10 * 0.01
    assert overview.counted[Period.HOUR].counts == {}
    assert report.dollars_per_hour == pytest.approx(report.dollars / 10.5)


async def test_a_cluster_that_has_just_begun_is_charged_from_then_on() -> None:
    """Else its first hour would look cheap, and so would the forecast."""
    store = MemoryMetadataStore(latency=0)
    tally = Tally()
    tally.add("machine:i4i.large", 600_000)
    for writer, minutes in (("node-1", 9), ("node-2", 10)):
        began_ms = NOW_MS - minutes * 60_000
        addition = Addition(writer, NOW_HOUR, writer, tally, began_ms)
        assert await add(store, addition, LIMITS, now_hour=NOW_HOUR)
    overview = await read_overview(store, PRICES, NodeConfig(), now_ms=NOW_MS)
    for period in Period:
        counted = overview.counted[period]
        assert counted.duration_ms == 600_000
        assert counted.counts["balancer"] == 600_000
    report = report_of(overview.counted[Period.HOUR], PRICES, topics_max=3)
    standing = 0.1 + 0.0225 + 12 / 730
    assert report.dollars_per_hour == pytest.approx(2 * 0.172 + standing)
    hours_left = (calendar_month(NOW_MS)[1] - NOW_MS) / HOUR_MS
    assert overview.month.forecast.dollars == pytest.approx(
        report.dollars + hours_left * report.dollars_per_hour
    )


async def test_the_forecast_of_a_young_ledger_passes_no_budget() -> None:
    store = MemoryMetadataStore(latency=0)
    tally = Tally()
    tally.add("zone-transfer", 10**12)  # 20 dollars in ten minutes
    addition = Addition("t", NOW_HOUR, "node-1", tally, NOW_MS - 600_000)
    assert await add(store, addition, LIMITS, now_hour=NOW_HOUR)
    for budget_dollars, is_passed in ((100.0, False), (19.0, True)):
        config = NodeConfig(cost_budget_month_dollars=budget_dollars)
        month = (await read_overview(store, PRICES, config, now_ms=NOW_MS)).month
        assert month.forecast.dollars > 1_000
        assert (month.is_settled, month.is_passed) == (False, is_passed)


async def test_an_empty_ledger_costs_nothing() -> None:
    store = MemoryMetadataStore(latency=0)
    overview = await read_overview(store, PRICES, NodeConfig(), now_ms=NOW_MS)
    for period in Period:
        report = report_of(overview.counted[period], PRICES, topics_max=3)
        assert (report.dollars, report.dollars_per_hour, report.topics) == (0, 0, [])
    assert (overview.month.forecast.dollars, overview.month.is_passed) == (0, False)


async def test_a_budget_is_passed_when_the_forecast_is_above_it() -> None:
    store = MemoryMetadataStore(latency=0)
    tally = Tally()
    tally.add("object-put", 48_500_000)  # 242.50 dollars in 24.5 hours
    for hour in range(NOW_HOUR - 24, NOW_HOUR + 1):
        part = tally if hour == NOW_HOUR else Tally()
        assert await add(store, Addition("t", hour, "node-1", part), LIMITS, now_hour=hour)
    config = NodeConfig(cost_budget_month_dollars=1_000.0, cost_budget_day_dollars=500.0)
    overview = await read_overview(store, PRICES, config, now_ms=NOW_MS)
    month, standing = overview.month.forecast, 0.1225 + 12 / 730
    assert month.spent_dollars == pytest.approx(242.5 + 24.5 * standing)
    rate = 242.5 / 24.5 + standing
    assert month.dollars == pytest.approx(month.spent_dollars + rate * (4 * 24 + 9.5))
    assert overview.month.is_passed
    assert not overview.day.is_passed  # 242.5 and 9.5 hours more are below 500
    assert overview.day.forecast.dollars == pytest.approx(242.5 + 14.5 * standing + rate * 9.5)
