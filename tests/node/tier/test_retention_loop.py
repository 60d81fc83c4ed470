"""What is too old leaves the readers first, then the store, then the metadata."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from tidelog_core.clock import steady_clock_ms, wall_clock_ms
from tidelog_core.errors import OffsetOutOfRange
from tidelog_core.metadata import records
from tidelog_core.metadata.records import (
    DeletedTopic,
    Partition,
    SegmentState,
    node_config_key,
    topic_key,
)
from tidelog_core.metadata.store import ANY_VERSION, Check, ItemKey, Write
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.tier.keys import deletion_key, parse_log_start_key
from tidelog_core.tier.lifecycle import start_deletions
from tidelog_node.replicas.replica import Replica
from tidelog_node.tier import retention
from tidelog_node.tier.retention import CLEANED_AT_ONCE, CLOCK_RETRY_SECONDS
from tidelog_node.upkeep.flusher import Flusher
from tidelog_node.upkeep.log_changes import LogChanges
from tidelog_node.upkeep.log_upkeep import LogUpkeep

from tests.support import tier_node
from tests.support.tier_node import (
    BROKER_ID,
    CONFIG,
    READY_TIMEOUT_S,
    SETTLE_TIMEOUT_S,
    START_MS,
    TOPIC,
    TierNode,
    running_node,
)
from tests.support.tier_segments import BASE_TIMESTAMP_MS
from tests.support.waiting import eventually_async

AT_ONCE = {"file.delete.delay.ms": "0"}


async def stored_log_start(node: TierNode, replica: Replica) -> int:
    item = await node.store.get(records.partition_key(replica.topic_id, 0))
    assert item is not None
    return Partition.from_item(item).log_start_offset


async def test_old_segments_go_everywhere(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        replica = await node.create_topic(
            configs={**AT_ONCE, "retention.ms": "100000", "local.retention.bytes": "0"}
        )
        node.produce_segments(replica, 4)
        node.produce(replica, 1)
        await node.wait_copied(replica, 4)
        # The second segment ends with the record of BASE + 99.
        node.clock.now_ms = BASE_TIMESTAMP_MS + 100_000 + 120
        await node.tier.apply_retention()
        assert replica.log.log_start_offset == 100
        assert await stored_log_start(node, replica) == 100
        assert [m.base_offset for m in await node.metas(replica)] == [100, 150]
        assert len(await node.objects()) == 4
        with pytest.raises(OffsetOutOfRange):
            await node.read(replica, 99, max_bytes=1)
        assert await node.read(replica, 100, max_bytes=1)
        for _ in range(2):  # harmless when repeated
            await node.tier.apply_retention()
        assert len(await node.objects()) == 4
        assert len(await node.verify(replica)) == 2


async def test_nothing_of_a_deleted_segment_stays_in_the_caches(tmp_path: Path) -> None:
    """They are large, and it would push out what is still read before it goes itself."""
    async with running_node(tmp_path) as node:
        replica = await node.create_topic(configs={**AT_ONCE, "local.retention.bytes": "0"})
        node.produce_segments(replica, 4)
        metas = await node.wait_copied(replica, 4)
        node.produce(replica, 1)
        await node.read_all(replica, 0, 200, max_bytes=100_000)
        sizes = [meta.index_size_bytes for meta in metas]
        assert node.tier.status["index_cache_bytes"] == sum(sizes)
        replica.log.advance_log_start_offset(100)
        await node.tier.apply_retention()
        assert len(await node.objects()) == 4
        assert node.tier.status["index_cache_bytes"] == sum(sizes[2:])
        cached = [path.name for path in (tmp_path / "cache").iterdir()]
        left = {
            str(meta.segment_id)
            for meta in metas
            for name in cached
            if str(meta.segment_id) in name
        }
        assert left == {str(meta.segment_id) for meta in metas[2:]}
        cached_bytes = (await node.tier.client.status())["cache_size_bytes"]
        logs = sum(meta.size_bytes for meta in metas[2:])
        assert cached_bytes == logs + sum(sizes[2:])


async def test_size_counts_local_and_tiered_together(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        replica = await node.create_topic(configs={**AT_ONCE, "local.retention.bytes": "0"})
        segments = node.produce_segments(replica, 4)
        await node.wait_copied(replica, 4)
        active = node.produce(replica, 1)
        limit = len(segments[2]) + len(segments[3]) + len(active)
        await node.configure(
            {**AT_ONCE, "local.retention.bytes": "0", "retention.bytes": str(limit)}
        )
        await node.tier.apply_retention()
        assert replica.log.log_start_offset == 100
        assert len(await node.finished(replica)) == 2


async def test_objects_stay_for_the_delay_after_readers_are_turned_away(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        replica = await node.create_topic(
            configs={"file.delete.delay.ms": "400", "retention.ms": "100000"}
        )
        node.produce_segments(replica, 2)
        await node.wait_copied(replica, 2)
        node.clock.now_ms += 200_000
        wait_s = await node.tier.apply_retention()
        assert replica.log.log_start_offset == 100
        assert 0 < wait_s <= 0.4
        metas = await node.metas(replica)
        assert {m.state for m in metas} == {SegmentState.DELETE_STARTED}
        assert len(await node.objects()) == 4
        node.clock.now_ms += 399
        assert await node.tier.apply_retention() == 0.001
        assert len(await node.objects()) == 4
        node.clock.now_ms += 1
        await node.tier.apply_retention()
        assert await node.metas(replica) == []
        assert await node.objects() == {}


async def test_the_delay_goes_on_where_it_was_after_a_restart(tmp_path: Path) -> None:
    """A new leader neither deletes earlier than was promised nor begins to wait anew."""
    async with running_node(tmp_path) as node:
        replica = await node.create_topic(
            configs={"file.delete.delay.ms": "5000", "retention.ms": "100000"}
        )
        node.produce_segments(replica, 2)
        await node.wait_copied(replica, 2)
        node.clock.now_ms += 200_000
        await node.tier.apply_retention()
    async with running_node(tmp_path) as node:
        node.clock.now_ms += 200_000 + 4_999
        await node.tier.apply_retention()
        assert len(await node.objects()) == 4
        node.clock.now_ms += 1
        await node.tier.apply_retention()
        assert await node.objects() == {}
        assert await node.metas(node.replica()) == []


async def test_a_log_start_that_a_function_has_advanced_turns_readers_away(tmp_path: Path) -> None:
    """With the next image, before the objects go, and not when retention is due here."""
    async with running_node(tmp_path) as node:
        replica = await node.create_topic(configs={**AT_ONCE, "retention.ms": "-1"})
        node.produce_segments(replica, 3)
        await node.wait_copied(replica, 3)
        await node.tier.apply_retention()
        await node.change_partition(replica, log_start_offset=100)
        await node.view.refresh()
        assert replica.log.log_start_offset == 100
        with pytest.raises(OffsetOutOfRange):
            await node.read(replica, 99, max_bytes=1)


async def test_deletions_that_a_function_has_begun_are_left_to_it(tmp_path: Path) -> None:
    """The node goes on with what is left, and does not call it trouble."""
    async with running_node(tmp_path) as node:
        replica = await node.create_topic(configs={**AT_ONCE, "retention.ms": "-1"})
        node.produce_segments(replica, 3)
        first, second, _ = await node.wait_copied(replica, 3)
        await node.tier.apply_retention()
        later_ms = node.clock.now_ms + 1000
        await start_deletions(node.store, [first], deletable_ms=later_ms)
        await node.change_partition(replica, log_start_offset=100)
        await node.view.refresh()
        for _ in range(2):
            await node.tier.apply_retention()
        assert node.tier.status["failing_partition_count"] == 0
        expired, kept = await node.metas(replica)
        assert (expired.segment_id, expired.deletable_ms) == (first.segment_id, later_ms)
        assert kept.base_offset == 100
        assert str(second.segment_id) not in " ".join(await node.objects())
        assert len(await node.objects()) == 4


async def test_deleted_records_leave_the_tier_too(tmp_path: Path) -> None:
    """DeleteRecords persists and advances the start; retention does the rest."""
    async with running_node(tmp_path) as node:
        replica = await node.create_topic(configs={**AT_ONCE, "retention.ms": "-1"})
        node.produce_segments(replica, 3)
        await node.wait_copied(replica, 3)
        replica.log.advance_log_start_offset(75)
        await node.tier.apply_retention()
        assert await stored_log_start(node, replica) == 75
        assert [m.base_offset for m in await node.finished(replica)] == [50, 100]
        with pytest.raises(OffsetOutOfRange):
            await node.read(replica, 74, max_bytes=1)
        await node.change_partition(replica, log_start_offset=100)
        await node.view.refresh()
        await node.tier.apply_retention()
        assert replica.log.log_start_offset == 100
        assert [m.base_offset for m in await node.finished(replica)] == [100]


async def test_local_only_topics_and_active_segments_expire_as_well(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        replica = await node.create_topic(
            configs={"remote.storage.enable": "false", "retention.ms": "100000"}
        )
        node.produce_segments(replica, 2)
        node.produce(replica, 1)
        await node.tier.apply_retention()
        assert replica.log.log_start_offset == 0
        node.clock.now_ms = START_MS + 200_000
        await node.tier.apply_retention()
        assert replica.log.log_start_offset == replica.log.log_end_offset == 110
        assert replica.log.size_bytes == 0
        assert await stored_log_start(node, replica) == 110


async def test_an_active_segment_that_expires_is_flushed_without_another_append(
    tmp_path: Path,
) -> None:
    """The next start would go through the log again otherwise, and the copier not begin."""
    async with running_node(tmp_path) as node, asyncio.TaskGroup() as tasks:
        replica = await node.create_topic(configs={"retention.ms": "100000"})
        node.produce(replica, 1)
        flusher, changes = Flusher(node.executor), LogChanges(node.replicas)
        changes.subscribe(LogUpkeep(flusher, node.replicas).on_changed)

        async def is_durable() -> bool:
            return replica.log.recovery_point == replica.log.log_end_offset

        changes.publish()
        assert not await is_durable()  # The active segment may wait.
        running = tasks.create_task(changes.run())
        node.clock.now_ms = START_MS + 200_000
        await node.tier.apply_retention()
        assert replica.log.active_segment_base_offset == replica.log.log_end_offset == 10
        await eventually_async(is_durable)
        running.cancel()
        await flusher.close()


async def apply_with_dying_worker(node: TierNode) -> None:
    pid = node.tier.client.worker_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    applying = asyncio.create_task(node.tier.apply_retention())
    await asyncio.sleep(0.2)
    os.kill(pid, signal.SIGKILL)
    await applying


@pytest.mark.parametrize(
    "key", [node_config_key(None), node_config_key(BROKER_ID), topic_key(TOPIC)], ids=str
)
async def test_nothing_expires_by_settings_that_cannot_all_be_read(
    tmp_path: Path, key: ItemKey
) -> None:
    """What cannot be read may say to keep everything."""
    async with running_node(tmp_path) as node:
        replica = await node.create_topic(configs={"retention.ms": "100000"})
        node.produce_segments(replica, 2)
        node.clock.now_ms = START_MS + 200_000
        item = await node.store.get(key)
        await node.store.commit([Write(key, {"of": "tomorrow"}, ANY_VERSION)])
        await node.view.refresh()
        await node.tier.apply_retention()
        assert replica.log.log_start_offset == 0
        await node.store.commit([Write(key, item and item.body, ANY_VERSION)])
        await node.view.refresh()
        await node.tier.apply_retention()
        assert replica.log.log_start_offset > 0


async def test_a_deletion_cut_short_is_ended_later(tmp_path: Path) -> None:
    """The worker dies between DELETE_STARTED and the end; and then the whole node."""
    async with running_node(tmp_path) as node:
        replica = await node.create_topic(
            configs={"file.delete.delay.ms": "1000", "retention.ms": "100000"}
        )
        node.produce_segments(replica, 2)
        await node.wait_copied(replica, 2)
        node.clock.now_ms += 199_000
        await node.tier.apply_retention()
        node.clock.now_ms += 1000
        await apply_with_dying_worker(node)
        metas = await node.metas(replica)
        assert [m.state for m in metas] == [SegmentState.DELETE_STARTED] * 2
        assert len(await node.objects()) == 4
    async with running_node(tmp_path) as node:
        node.clock.now_ms += 200_000

        async def is_gone() -> bool:
            await node.tier.apply_retention()
            return await node.metas(node.replica()) == []

        await eventually_async(is_gone)
        assert await node.objects() == {}


def published(node: TierNode, replica: Replica) -> dict[int, int]:
    """Return where the bucket tells that the log starts, and the inode of each that does."""
    root = node.objects_folder / node.view.image.cluster_id
    paths = root.glob(f"*-{replica.topic_id}/0/log-start-*.json")
    parsed = {parse_log_start_key(str(p.relative_to(node.objects_folder))): p for p in paths}
    return {key.offset: path.stat().st_ino for key, path in parsed.items() if key is not None}


async def test_a_log_start_is_published_once_for_each_time_that_it_has_moved(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path) as node:
        replica = await node.create_topic(configs={**AT_ONCE, "retention.ms": "-1"})
        node.produce_segments(replica, 3)
        await node.wait_copied(replica, 3)
        await node.tier.apply_retention()
        assert published(node, replica) == {}
        for start in (10, 20, 75):  # DeleteRecords, three times before retention is due
            replica.log.advance_log_start_offset(start)
        await node.tier.apply_retention()
        first = published(node, replica)
        assert list(first) == [75]
        await node.tier.apply_retention()
        assert published(node, replica) == first
        # A function has moved it on, and published it.
        await node.change_partition(replica, log_start_offset=100)
        await node.view.refresh()
        await node.tier.apply_retention()
        second = published(node, replica)
        assert list(second) == [100]
        await node.change_partition(replica, leader_epoch=1)
        await node.view.refresh()
        await node.tier.apply_retention()
        assert node.tier.status["failing_partition_count"] == 0
        assert published(node, replica) == second  # a new leader need not tell it again
    async with running_node(tmp_path) as node:
        await node.tier.apply_retention()
        assert published(node, node.replica()) == second


async def test_nothing_is_deleted_before_the_log_start_is_in_the_bucket(tmp_path: Path) -> None:
    """The worker dies while the log start is published: it has moved, all else waits."""
    async with running_node(tmp_path) as node:
        replica = await node.create_topic(configs={**AT_ONCE, "retention.ms": "100000"})
        node.produce_segments(replica, 2)
        await node.wait_copied(replica, 2)
        node.clock.now_ms += 200_000
        await apply_with_dying_worker(node)
        assert replica.log.log_start_offset == await stored_log_start(node, replica) == 100
        assert len(await node.finished(replica)) == 2
        assert len(await node.objects()) == 4
        assert published(node, replica) == {}

        async def is_gone() -> bool:
            await node.tier.apply_retention()
            return await node.metas(replica) == []

        await eventually_async(is_gone)
        assert list(published(node, replica)) == [100]


async def test_needless_log_starts_and_those_of_untiered_topics_are_not_published(
    tmp_path: Path,
) -> None:
    """Of topics that are not tiered, and where a restoration had to begin a log."""
    async with running_node(tmp_path) as node:
        local = await node.create_topic("local", configs={"remote.storage.enable": "false"})
        restored = await node.create_topic("restored")
        for replica in (local, restored):
            node.produce_segments(replica, 2)
        await node.wait_copied(restored, 2)
        for replica in (local, restored):
            await node.change_partition(
                replica, log_start_offset=40, restored_log_start=40 * (replica is restored)
            )
        await node.view.refresh()
        await node.tier.apply_retention()
        assert local.log.log_start_offset == restored.log.log_start_offset == 40
        assert published(node, local) == published(node, restored) == {}
        await node.change_partition(restored, log_start_offset=41)
        await node.view.refresh()
        await node.tier.apply_retention()
        assert list(published(node, restored)) == [41]


async def test_a_deletion_is_published_at_once_and_until_all_of_the_topic_is_gone(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path) as node:
        replica = await node.create_topic()
        node.produce_segments(replica, 2)
        await node.wait_copied(replica, 2)
        topic = node.view.image.topics["events"]
        tombstone = DeletedTopic(
            topic_id=topic.topic_id,
            name=topic.name,
            partition_count=1,
            deleted_ms=node.clock.now_ms,
        )
        await node.store.commit([records.delete(topic), records.put(tombstone)])
        await node.view.refresh()
        key = deletion_key(node.view.image.cluster_id, topic.name, topic.topic_id)
        path = node.objects_folder / key
        for _ in range(2):
            await node.tier.apply_retention()
            assert json.loads(path.read_bytes())["deleted_ms"] == tombstone.deleted_ms
            assert len(await node.objects()) == 4
        node.clock.now_ms += 60_001
        await apply_with_dying_worker(node)
        assert path.exists()
        await node.tier.client.wait_ready(READY_TIMEOUT_S)
        await node.tier.apply_retention()
        assert not path.exists()
        assert await node.store.get(tombstone.item_id) is None


async def test_a_deleted_topics_objects_and_metadata_go_after_the_delay(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        replica = await node.create_topic()
        kept = await node.create_topic("kept")
        node.produce_segments(replica, 2)
        node.produce_segments(kept, 1)
        await node.wait_copied(replica, 2)
        await node.wait_copied(kept, 1)
        topic = node.view.image.topics["events"]
        # An upload that was under way when the topic was deleted.
        (litter,) = {p.parent for p in node.objects_folder.rglob("*.log") if "events" in str(p)}
        (litter / "00000000000000000100-0-x.log").write_bytes(b"late")
        tombstone = DeletedTopic(
            topic_id=topic.topic_id,
            name=topic.name,
            partition_count=1,
            deleted_ms=node.clock.now_ms,
        )
        await node.store.commit([records.delete(topic), records.put(tombstone)])
        await node.view.refresh()
        await node.tier.apply_retention()
        assert len(await node.metas(replica)) == 2
        node.clock.now_ms += 60_001
        await node.tier.apply_retention()
        assert await node.metas(replica) == []
        assert await node.store.get(tombstone.item_id) is None
        assert await node.store.list(records.partition_collection(topic.topic_id)) == []
        assert not [p for p in node.objects_folder.rglob("*") if "events" in str(p)]
        assert len(await node.verify(kept)) == 1
        await node.view.refresh()
        await node.tier.apply_retention()


async def test_a_deleted_topic_that_cannot_go_keeps_no_other_from_it(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        tombstones = []
        for name in ("damaged", "whole"):
            replica = await node.create_topic(name)
            node.produce_segments(replica, 1)
            await node.wait_copied(replica, 1)
            topic = node.view.image.topics[name]
            tombstones.append(
                DeletedTopic(
                    topic_id=topic.topic_id,
                    name=name,
                    partition_count=1,
                    deleted_ms=node.clock.now_ms,
                )
            )
            await node.store.commit([records.delete(topic), records.put(tombstones[-1])])
        damaged, whole = tombstones
        (item,) = await node.store.list(records.segment_collection(damaged.topic_id, 0))
        nonsense = Write(item.id, {"state": "melted"}, item.version, False)
        await node.store.commit([nonsense])
        await node.view.refresh()
        node.clock.now_ms += 60_001

        async def is_gone(deleted: DeletedTopic) -> bool:
            # The node's own round may be at it, too, and the one that comes second waits.
            await node.tier.apply_retention()
            return await node.store.get(deleted.item_id) is None

        await eventually_async(partial(is_gone, whole))
        assert await node.store.get(damaged.item_id) is not None
        await node.store.commit([Write(item.id, item.body, item.version + 1, False)])
        await eventually_async(partial(is_gone, damaged))


async def test_a_deleted_topic_that_breaks_its_cleaning_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_id, whole_ids = UUID(int=2), {UUID(int=1), UUID(int=3)}

    class BreakingStore(SqliteMetadataStore):
        async def list(self, collection: str, *args: Any, **kwargs: Any) -> Any:
            if collection == records.segment_collection(broken_id, 0):
                raise ValueError("a bug")
            return await super().list(collection, *args, **kwargs)

    monkeypatch.setattr(tier_node, "SqliteMetadataStore", BreakingStore)
    monkeypatch.setattr(retention, "CLEANED_AT_ONCE", 1)

    async with running_node(tmp_path) as node:
        tombstones = [
            DeletedTopic(
                topic_id=topic_id,
                name=f"gone-{topic_id.int}",
                partition_count=1,
                deleted_ms=node.clock.now_ms - 60_001,
            )
            for topic_id in (broken_id, *whole_ids)
        ]
        await node.store.commit([records.put(one) for one in tombstones])
        await node.view.refresh()

        async def are_whole_gone() -> bool:
            # The node's own round may be at it, too, and the one that comes second waits.
            await node.tier.apply_retention()
            left = await node.store.list(records.DELETED_TOPIC_COLLECTION)
            return [DeletedTopic.from_item(item).topic_id for item in left] == [broken_id]

        await eventually_async(are_whole_gone)


async def test_deleted_topics_are_cleaned_up_several_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands may go together, each in a dozen calls that wait for store and bucket."""
    under_way = 0
    most = 0

    class WatchedStore(SqliteMetadataStore):
        async def commit(self, writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            try:
                await super().commit(writes, checks=checks)
            finally:
                under_way -= 1

    monkeypatch.setattr(tier_node, "SqliteMetadataStore", WatchedStore)
    count = CLEANED_AT_ONCE + 3

    async with running_node(tmp_path) as node:
        tombstones = [
            DeletedTopic(
                topic_id=uuid4(),
                name=f"gone-{number}",
                partition_count=1,
                deleted_ms=node.clock.now_ms - 60_001,
            )
            for number in range(count)
        ]
        await node.store.commit([records.put(one) for one in tombstones])
        await node.view.refresh()
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            # The node's own round may be at it, too, and the one that comes second waits.
            while await node.store.list(records.DELETED_TOPIC_COLLECTION):
                await node.tier.apply_retention()
        # Two rounds one by one would be two at most.
        assert 4 <= most <= 2 * CLEANED_AT_ONCE


async def test_a_leader_that_was_replaced_deletes_nothing(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        replica = await node.create_topic(configs={**AT_ONCE, "retention.ms": "100000"})
        node.produce_segments(replica, 2)
        await node.wait_copied(replica, 2)
        await node.change_partition(replica, leader=2, leader_epoch=1)
        node.clock.now_ms += 200_000
        await node.tier.apply_retention()
        assert len(await node.finished(replica)) == 2
        assert len(await node.objects()) == 4
        assert replica.log.log_start_offset == 0


async def test_nothing_goes_by_a_clock_that_is_in_doubt(tmp_path: Path) -> None:
    """Neither records for their age, nor local copies, nor objects whose deletion has begun."""
    async with running_node(tmp_path) as node:
        configs = {"retention.ms": "100000", "file.delete.delay.ms": "1000"}
        replica = await node.create_topic(configs=configs)
        gone = await node.create_topic("gone", configs=configs)
        node.produce_segments(replica, 4)
        node.produce(replica, 1)
        await node.wait_copied(replica, 4)
        replica.log.advance_log_start_offset(50)
        await node.tier.apply_retention()  # begins to delete the first segment
        assert len(await node.objects()) == 8
        tombstone = DeletedTopic(
            topic_id=gone.topic_id, name="gone", partition_count=1, deleted_ms=START_MS
        )
        await node.store.commit([records.put(tombstone)])
        await node.view.refresh()
        local_start = replica.log.local_log_start_offset
        node.is_clock_trusted = False
        node.clock.now_ms = BASE_TIMESTAMP_MS + 8 * 86_400_000
        assert await node.tier.apply_retention() == CLOCK_RETRY_SECONDS
        assert (replica.log.log_start_offset, await stored_log_start(node, replica)) == (50, 50)
        assert replica.log.local_log_start_offset == local_start
        assert len(await node.objects()) == 8
        assert tombstone.topic_id in node.view.image.deleted_topics
        # What is too much goes all the same: no clock is needed for that.
        await node.configure({**configs, "retention.bytes": "1"})
        await node.tier.apply_retention()
        assert replica.log.log_start_offset == 200
        node.is_clock_trusted = True
        await node.tier.apply_retention()
        await node.view.refresh()
        assert tombstone.topic_id not in node.view.image.deleted_topics


async def test_a_partition_waits_for_its_first_retention_as_for_every_other(tmp_path: Path) -> None:
    """Whatever has the node look meanwhile: here a topic that is deleted."""
    interval_s = 1.0
    config = dataclasses.replace(CONFIG, log_retention_check_interval_ms=int(interval_s * 1000))

    async def has_begun_later(replica: Replica) -> bool:
        return replica.log.log_start_offset > 0

    async def delete_a_topic(node: TierNode) -> None:
        await node.create_topic("other")
        topic = node.view.image.topics["other"]
        gone = DeletedTopic(
            topic_id=topic.topic_id, name="other", partition_count=1, deleted_ms=START_MS
        )
        await node.store.commit([records.delete(topic), records.put(gone)])
        await node.view.refresh()
        await asyncio.sleep(0.1)

    async with running_node(tmp_path, config) as node:
        begun = time.monotonic()
        replica = await node.create_topic(configs={"retention.ms": "1"})
        node.produce_segments(replica, 2)
        await delete_a_topic(node)
        assert replica.log.log_start_offset == 0 or time.monotonic() > begun + interval_s
        await eventually_async(partial(has_begun_later, replica))
        assert time.monotonic() > begun + interval_s


async def test_nobody_blames_the_disk_for_topics_that_are_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_node(tmp_path) as node:
        tombstones: list[DeletedTopic] = []
        for number in range(40):
            name = f"t{number}"
            replica = await node.create_topic(name, configs={"retention.ms": "1"})
            node.produce_segments(replica, 2)
            topic = node.view.image.topics[name]
            tombstones.append(
                DeletedTopic(
                    topic_id=topic.topic_id, name=name, partition_count=1, deleted_ms=START_MS
                )
            )
        passing = asyncio.create_task(node.tier.apply_retention())
        for tombstone in tombstones:
            deletion = [
                records.delete(node.view.image.topics[tombstone.name]),
                records.put(tombstone),
            ]
            await node.store.commit(deletion)
            await node.view.refresh()
        await passing
        await node.tier.apply_retention()
        assert "disk has failed" not in caplog.text
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_copy_tells_what_the_buckets_clock_says(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        replica = await node.create_topic()
        assert list(node.tier.witnesses()) == []
        node.produce_segments(replica, 1)
        await node.wait_copied(replica, 1)
        (witness,) = node.tier.witnesses()
        assert abs(witness.wall_ms - wall_clock_ms()) < 60_000
        assert 0 <= steady_clock_ms() - witness.heard_steady_ms < 60_000
        # A folder's times are by the clock of this very machine.
        assert not witness.is_independent
