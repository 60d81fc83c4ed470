"""What a node writes to the ledger, whatever becomes of its writes, and when it is restarted."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.cost.counts import HOUR_MS
from tidelog_core.cost.ledger import (
    CurrentHourClosed,
    read_hours,
    read_since_day,
    rolled_up_to,
)
from tidelog_core.cost.prices import list_prices
from tidelog_core.errors import OutcomeUnknown, StoreUnavailable
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Broker, put
from tidelog_node.costs.collector import CostCollector
from tidelog_node.costs.recorder import CostRecorder

from tests.contracts.cost_ledger import NOW_MS, without_standing
from tests.contracts.metadata_update import Fate, FatedStore
from tests.support.clock import Clock
from tests.support.memory_store import MemoryMetadataStore
from tests.support.node_context import node_context

MINUTE_MS = 60_000


class NoTier:
    """A tier without a worker, whose size the test sets."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}

    async def worker_status(self) -> Mapping[str, Any] | None:
        return None

    async def stored_bytes(self, *, readings_max: int) -> dict[str, int]:
        return self.sizes


class Nodes:
    """Nodes of one cluster that record on one store, by one clock."""

    def __init__(self) -> None:
        self.clock = Clock(NOW_MS)
        self.real = MemoryMetadataStore(latency=0)
        self.store = FatedStore(self.real)  # type: ignore[arg-type]
        self.view = ClusterView(self.real)
        self.executor = ThreadPoolExecutor(1)
        self.config = NodeConfig()

    async def register(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            endpoints = plaintext_endpoints("h", broker_id)
            incarnation = UUID(int=broker_id)
            broker = Broker(broker_id=broker_id, incarnation=incarnation, endpoints=endpoints)
            await self.real.commit([put(broker)])
        await self.view.refresh()

    def start(self, broker_id: int) -> CostRecorder:
        """Start the process of a node, again and again."""
        context = node_context(
            self.store,  # type: ignore[arg-type]
            self.view,
            broker_id=broker_id,
            config=lambda: self.config,
            executor=self.executor,
            clock_ms=self.clock,
        )
        collector = CostCollector(context, NoTier(), usages=(), clock_ms=self.clock)
        return CostRecorder(context, collector, list_prices(), clock_ms=self.clock)

    async def counted(self) -> Counter[str]:
        """Return what the whole ledger has, by hours and days."""
        hours, days = await read_since_day(self.real, first_day=0)
        total = Counter[str]()
        for entry in (*hours, *days):
            total.update(entry.counts)
        return total


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    nodes = Nodes()
    await nodes.register(1, 2)
    yield nodes
    nodes.executor.shutdown()


def spend(recorder: CostRecorder, topic: str, count: int) -> None:
    traffics = recorder._node.counters.topics
    traffics.of(topic).replicated_across_bytes += count


async def test_each_minute_is_added_to_its_hour(nodes: Nodes) -> None:
    nodes.clock.now_ms = NOW_MS // HOUR_MS * HOUR_MS + 58 * MINUTE_MS
    recorder = nodes.start(1)
    for minutes in (1, 1, 1):
        nodes.clock.now_ms += minutes * MINUTE_MS
        await recorder.record()
    first, second = await read_hours(nodes.real, first_hour=0)
    assert (first.hour + 1, first.writer) == (second.hour, "node-1")
    assert first.counts["machine:i4i.large"] == 2 * MINUTE_MS // 2
    assert second.counts["machine:i4i.large"] == MINUTE_MS // 2
    assert recorder.total["machine:i4i.large"] == 3 * MINUTE_MS // 2


async def test_a_sample_is_taken_when_an_hour_ends(nodes: Nodes) -> None:
    recorder = nodes.start(1)
    assert recorder._wait_ms() == MINUTE_MS
    nodes.clock.now_ms = NOW_MS // HOUR_MS * HOUR_MS + HOUR_MS - 1_500
    assert recorder._wait_ms() == 1_501


@pytest.mark.parametrize("seed", range(8))
async def test_nothing_is_counted_twice_over_restarts_and_lost_answers(
    nodes: Nodes, seed: int
) -> None:
    """Two nodes for a day, restarted now and then, on a store that loses writes and answers."""
    rng = random.Random(seed)
    truth = 0
    nodes.store.fates = lambda: rng.choices(list(Fate), (8, 1, 1, 0))[0]
    recorders = {broker_id: nodes.start(broker_id) for broker_id in (1, 2)}
    for _ in range(150):
        nodes.clock.now_ms += rng.randrange(1, 20) * MINUTE_MS
        for broker_id, recorder in tuple(recorders.items()):
            count = rng.randrange(1, 1_000_000)
            spend(recorder, rng.choice("abc"), count)
            truth += count
            for attempt in range(30):
                try:
                    await recorder.record()
                    await recorder._keep()
                    break
                except OutcomeUnknown:
                    nodes.clock.now_ms += MINUTE_MS * (attempt % 3)
            if rng.random() < 0.1:
                await recorder.close()
                recorders[broker_id] = nodes.start(broker_id)
    nodes.store.fates = lambda: Fate.TOLD
    for recorder in recorders.values():
        await recorder.record()
    counted = await nodes.counted()
    assert counted["zone-transfer"] == truth
    # Days have whole hours, which stay listed until they are deleted.
    assert await rolled_up_to(nodes.real) > NOW_MS // HOUR_MS


async def test_while_the_store_is_away_counts_wait(nodes: Nodes) -> None:
    recorder = nodes.start(1)
    nodes.real.is_available = False
    for _ in range(40):
        nodes.clock.now_ms += 20 * MINUTE_MS  # over many hours
        spend(recorder, "t", 10)
        with pytest.raises(StoreUnavailable):
            await recorder.record()
    assert len(recorder._waiting) <= 8
    await recorder.close()  # says so, and ends
    nodes.real.is_available = True
    await recorder.record()
    assert (await nodes.counted())["zone-transfer"] == 400
    assert not recorder._waiting


async def test_counts_of_a_closed_hour_go_to_the_current_one(nodes: Nodes) -> None:
    late, keeper = nodes.start(2), nodes.start(1)
    nodes.clock.now_ms += MINUTE_MS
    spend(late, "t", 5)
    nodes.real.is_available = False
    with pytest.raises(StoreUnavailable):
        await late.record()
    nodes.real.is_available = True
    await keeper.record()
    nodes.clock.now_ms += 5 * HOUR_MS
    await keeper._keep()
    await late.record()
    hours = [one for one in await read_hours(nodes.real, first_hour=0) if one.writer == "node-2"]
    assert [one.hour for one in hours] == [nodes.clock.now_ms // HOUR_MS]
    assert hours[0].topic_counts == {"t/zone-transfer": 5}


async def test_while_the_current_hour_is_closed_counts_wait(nodes: Nodes) -> None:
    """Another node's clock is hours ahead: the store is asked once a minute, not without end."""
    late, ahead = nodes.start(2), nodes.start(1)
    nodes.clock.now_ms = now_ms = NOW_MS + MINUTE_MS
    spend(late, "t", 5)
    await late.record()
    nodes.clock.now_ms += 5 * HOUR_MS
    await ahead._keep()
    nodes.clock.now_ms = now_ms
    for _ in range(12):
        nodes.clock.now_ms += MINUTE_MS
        spend(late, "t", 7)
        with pytest.raises(CurrentHourClosed, match="closed for the current hour"):
            await late.record()
    assert len(late._waiting) <= 2
    nodes.clock.now_ms += HOUR_MS
    await late.record()
    first, second = await read_hours(nodes.real, first_hour=0)
    assert (first.is_sealed, first.counts["zone-transfer"]) == (True, 5)
    assert (second.hour, second.counts["zone-transfer"]) == (first.hour + 1, 12 * 7)


async def test_only_the_live_node_with_the_lowest_id_keeps_the_ledger(nodes: Nodes) -> None:
    first, second = nodes.start(1), nodes.start(2)
    assert (first.is_keeper, second.is_keeper) == (True, False)
    nodes.clock.now_ms += MINUTE_MS
    await second.record()
    nodes.clock.now_ms += 5 * HOUR_MS
    await second._keep()
    assert await rolled_up_to(nodes.real) == 0
    await first._keep()
    assert await rolled_up_to(nodes.real) == nodes.clock.now_ms // HOUR_MS - 2
    [day] = (await read_since_day(nodes.real, first_day=0))[1]
    assert day.writer == "node-2"


async def test_a_passed_budget_is_said_once_a_day(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    nodes.config = NodeConfig(cost_budget_month_dollars=100.0)
    caplog.set_level(logging.WARNING)
    recorder = nodes.start(1)

    def said() -> list[logging.LogRecord]:
        return [one for one in caplog.records if one.message == "costs pass the budget"]

    nodes.clock.now_ms += MINUTE_MS
    spend(recorder, "t", 10**9)
    await recorder.record()
    await recorder._keep()
    month, day = recorder.budgets.known
    assert not month.is_passed
    assert day.budget_dollars is None
    spend(recorder, "t", 6_000 * 10**9)  # 120 dollars
    for hours in (1, 1, 20):
        nodes.clock.now_ms += hours * HOUR_MS
        await recorder.record()
        await recorder._keep()
    assert recorder.budgets.known[0].is_passed
    assert len(said()) == 2  # today and tomorrow
    fields = vars(said()[0])
    assert (fields["period"], fields["budget_dollars"]) == ("month", 100.0)
    assert fields["setting"] == "cost.budget.month.dollars"
    assert fields["spent_dollars"] > 120
    assert fields["forecast_dollars"] > fields["spent_dollars"]


async def test_a_new_budget_is_looked_at_in_the_next_minute(nodes: Nodes) -> None:
    recorder = nodes.start(1)
    spend(recorder, "t", 10**12)  # 20 dollars
    nodes.clock.now_ms += MINUTE_MS
    await recorder.record()
    await recorder._keep()
    assert not recorder.budgets.known[0].is_passed
    nodes.config = NodeConfig(cost_budget_month_dollars=19.0)
    await recorder._keep()
    assert recorder.budgets.known[0].is_passed


async def test_the_recent_rate_is_of_the_last_samples(nodes: Nodes) -> None:
    recorder = nodes.start(1)
    for count in (10**12, *([1_000] * 10)):
        nodes.clock.now_ms += MINUTE_MS
        spend(recorder, "t", count)
        await recorder.record()
    recent, duration_ms = recorder.recently()
    assert recent.counts["zone-transfer"] == 10_000
    assert duration_ms == 10 * MINUTE_MS
    assert without_standing(recent.counts)["machine-volume"] == 5 * MINUTE_MS
    assert recent.topics == {"t/zone-transfer": 10_000}
