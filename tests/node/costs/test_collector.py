"""What a node counts that costs money, against the objects in its bucket and its clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tidelog_core.cost.counts import by_topic
from tidelog_core.cost.entries import Tally
from tidelog_node.costs.collector import CostCollector

from tests.support.tier_node import TOPIC, TierNode, running_node

SECOND_MS = 1_000.0


class SteadyClock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now_ms = 5_000.0

    def __call__(self) -> float:
        return self.now_ms


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[TierNode]:
    async with running_node(tmp_path) as node:
        yield node


@pytest.fixture
def clock() -> SteadyClock:
    return SteadyClock()


class Summed:
    """The sum of a collector's samples."""

    def __init__(self, collector: CostCollector) -> None:
        self.collector = collector
        self.tally = Tally()

    async def sample(self) -> Tally:
        self.tally.merge(await self.collector.sample())
        return self.tally


@pytest.fixture
def collector(node: TierNode, clock: SteadyClock) -> Summed:
    usages = [node.store.usage]
    return Summed(CostCollector(node.context, node.tier, usages=usages, clock_ms=clock))


def of_topic(tally: Tally, topic: str) -> dict[str, int]:
    return dict(by_topic(tally.topics).get(topic, {}))


async def test_objects_and_their_bytes_belong_to_their_topics(
    node: TierNode, collector: Summed
) -> None:
    for name, count in ((TOPIC, 2), ("other", 1)):
        replica = await node.create_topic(name, configs={"remote.storage.enable": "true"})
        node.produce_segments(replica, count)
        await node.wait_copied(replica, count)
    tally = (await collector.sample()).copy()
    stored = [path for path in node.objects_folder.rglob("*") if path.is_file()]
    for name, count in ((TOPIC, 2), ("other", 1)):
        here = [path for path in stored if f"/{name}-" in str(path)]
        counted = of_topic(tally, name)
        assert counted["object-put"] >= len(here) >= 2 * count
        segments = sum(path.stat().st_size for path in here if path.suffix in (".log", ".index"))
        assert counted["object-sent"] >= segments
    assert tally.counts["object-put"] >= len(stored)  # with the cluster's own manifest
    before = of_topic(tally, TOPIC)
    await node.read(node.replica(), 0, max_bytes=1_000)
    after = of_topic(await collector.sample(), TOPIC)
    assert after["object-get"] > before.get("object-get", 0)
    assert after["object-put"] == before["object-put"]
    assert of_topic(collector.tally, "other") == of_topic(tally, "other")


async def test_a_tier_worker_that_is_killed_begins_to_count_again(
    node: TierNode, collector: Summed
) -> None:
    replica = await node.create_topic(configs={"remote.storage.enable": "true"})
    node.produce_segments(replica, 2)
    await node.wait_copied(replica, 2)
    before = (await collector.sample()).copy()
    first = await node.tier.worker_status()
    await node.tier.client.close()
    assert await node.tier.worker_status() is None
    assert (await collector.sample()).counts["object-put"] == before.counts["object-put"]
    node.tier.client.start()
    await node.tier.client.wait_ready(30)
    second = await node.tier.worker_status()
    assert first is not None
    assert second is not None
    assert second["incarnation"] != first["incarnation"]
    node.produce_segments(replica, 1)
    await node.wait_copied(replica, 3)
    after = await collector.sample()
    again = await node.tier.worker_status()
    assert again is not None
    puts = sum(count for method, _, count in again["requests"] if method == "put")
    assert after.counts["object-put"] == before.counts["object-put"] + puts


async def test_the_leader_is_charged_for_stored_bytes_and_time(
    node: TierNode, collector: Summed, clock: SteadyClock
) -> None:
    replica = await node.create_topic(configs={"remote.storage.enable": "true"})
    node.produce_segments(replica, 2, batch_count=200)
    metas = await node.wait_copied(replica, 2)
    size_kb = sum(meta.size_bytes for meta in metas) // 1_000
    assert size_kb > 10
    clock.now_ms += 100 * SECOND_MS
    first = (await collector.sample()).copy()
    assert of_topic(first, TOPIC)["object-storage"] == size_kb * 100
    clock.now_ms += 0.5 * SECOND_MS
    second = await collector.sample()
    grown = second.counts["object-storage"] - first.counts["object-storage"]
    assert grown == size_kb * 500 // 1_000


async def test_a_node_that_has_just_taken_over_reads_the_sizes(
    node: TierNode, clock: SteadyClock
) -> None:
    replica = await node.create_topic(configs={"remote.storage.enable": "true"})
    node.produce_segments(replica, 2)
    metas = await node.wait_copied(replica, 2)
    node.tier._partitions._led.clear()
    assert await node.tier.stored_bytes(readings_max=0) == {TOPIC: 0}
    sizes = await node.tier.stored_bytes(readings_max=1)
    assert sizes == {TOPIC: sum(meta.size_bytes for meta in metas)}


async def test_machines_and_units_are_counted_by_clock_and_store(
    node: TierNode, collector: Summed, clock: SteadyClock
) -> None:
    await collector.sample()
    clock.now_ms += 61 * SECOND_MS
    for _ in range(7):
        await node.store.changes_since(node.view.image.version)
    since = await collector.collector.sample()
    assert since.counts["machine:i4i.large"] == 30_500  # of two nodes on the machine
    assert since.counts["machine-volume"] == 30_500
    assert since.counts["metadata-read"] >= 7_000
    assert since.topics == {}


async def test_a_sample_that_is_cancelled_is_part_of_the_next(
    node: TierNode, clock: SteadyClock
) -> None:
    class Hanging:
        """A tier whose worker does not answer in time, once."""

        answers = asyncio.Event()

        async def worker_status(self) -> Mapping[str, Any] | None:
            await self.answers.wait()
            return await node.tier.worker_status()

        stored_bytes = node.tier.stored_bytes

    collector = CostCollector(node.context, Hanging(), usages=(), clock_ms=clock)
    clock.now_ms += 10 * SECOND_MS
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await collector.sample()
    clock.now_ms += 10 * SECOND_MS
    Hanging.answers.set()
    assert (await collector.sample()).counts["machine:i4i.large"] == 10_000


async def test_requests_of_a_topic_whose_counters_made_room_are_counted_once(
    node: TierNode, clock: SteadyClock
) -> None:
    """What was counted for it is in the rest of the totals from then on."""
    a, b = (f"{name}-{UUID(int=number)}" for number, name in enumerate("ab"))

    class Tier:
        """A tier whose worker says what the test has it say."""

        stored_bytes = node.tier.stored_bytes

        async def worker_status(self) -> dict[str, Any]:
            total, groups = said
            return {
                "incarnation": "1",
                "requests": [["get", "ok", total]],
                "sent_bytes": 0,
                "received_bytes": total * 10,
                "topics": [[name, {"get": n}, 0, n * 10] for name, n in groups.items()],
            }

    summed = Summed(CostCollector(node.context, Tier(), usages=(), clock_ms=clock))
    for said in (
        (110, {a: 100, b: 5}),
        (112, {b: 6}),  # It is gone, after another request.
        (120, {a: 4, b: 6}),  # It began again.
        (130, {a: 1, b: 9}),  # It was gone in between.
        (130, {}),
    ):
        counts = (await summed.sample()).counts
        assert (counts["object-get"], counts["object-received"]) == (said[0], said[0] * 10)
    topics = by_topic(summed.tally.topics)
    assert (topics["a"]["object-get"], topics["b"]["object-get"]) == (105, 9)
    assert list(summed.collector._workers[0][1].last) == [""]


async def test_bytes_from_other_zones_are_counted_by_topic(
    node: TierNode, collector: Summed
) -> None:
    node.context.counters.topics.of("t").replicated_across_bytes += 1_000
    first = (await collector.sample()).copy()
    node.context.counters.topics.forget("t")  # deleted, and created again
    node.context.counters.topics.of("t").replicated_across_bytes += 300
    await collector.sample()
    assert of_topic(first, "t") == {"zone-transfer": 1_000}
    assert of_topic(collector.tally, "t") == {"zone-transfer": 1_300}


async def test_nothing_is_kept_of_topics_that_are_gone(node: TierNode, collector: Summed) -> None:
    topics = node.context.counters.topics
    for number in range(500):
        topics.of(f"t{number}").replicated_across_bytes += 1
        await collector.collector.sample() if number % 100 == 0 else None
        topics.forget(f"t{number}")
    last = await collector.collector.sample()
    assert last.topics == {}
    assert len(collector.collector._last_of_topics) <= 1


async def test_the_requests_of_another_worker_are_counted_too(collector: Summed) -> None:
    """That of the chains, which starts later, and again: its counters begin at 0 then."""

    def of(incarnation: str, count: int) -> dict[str, Any]:
        requests = [["put", "ok", count]]
        rest = {"sent_bytes": 100 * count, "received_bytes": 0, "topics": []}
        return {"incarnation": incarnation, "requests": requests, **rest}

    said = iter((None, of("1", 5), of("1", 7), None, of("2", 3)))

    async def status() -> dict[str, Any] | None:
        return next(said)

    before = (await collector.sample()).counts.copy()
    collector.collector.count_worker(status)
    for _ in range(5):
        counts = (await collector.sample()).counts
    assert counts["object-put"] - before.get("object-put", 0) == 10
    assert counts["object-sent"] - before.get("object-sent", 0) == 1_000
