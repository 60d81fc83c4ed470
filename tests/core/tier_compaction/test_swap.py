"""A swap that is cut short, that meets retention, another compactor or a deleted topic."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
from tidelog_core.errors import OutcomeUnknown, StoreUnavailable, UnknownTopicOrPartition
from tidelog_core.metadata import records
from tidelog_core.metadata.records import DeletedTopic, SegmentMeta, SegmentState
from tidelog_core.metadata.store import Check, Write
from tidelog_core.objects.store import ObjectStore
from tidelog_core.retention.deleted_topics import clean_deleted_topic
from tidelog_core.tier.keys import parse_segment_key
from tidelog_core.tier.lifecycle import read_segments, start_deletions
from tidelog_core.tier.planning import select_leftovers
from tidelog_core.tier_compaction.compact import CompactionOutcome, compact_partition
from tidelog_core.tier_compaction.swap import CLAIM_MS, PartitionClaimed
from tidelog_core.verification.plan import LEFTOVER, ORPHAN

from tests.support.compacted_tier import compacted, let_replaced_go, plain, read_rows, rows_of
from tests.support.random_logs import RandomLog, committed_records, oracle
from tests.support.tiered_partition import CLUSTER_ID, TieredPartition, tiered_partition
from tests.support.watched_stores import (
    Crash,
    Fault,
    Process,
    WatchedMetadata,
    WatchedObjects,
    Witness,
)

CONFIGS = {"segment.bytes": "300"}  # several groups


class PointedAt(Witness):
    """Judges deletions: nothing may go that readers were pointed at until just now."""

    def __init__(self, partition: TieredPartition) -> None:
        super().__init__(partition.store, partition.clock)
        self._partition = partition

    async def judge_told(self, key: str) -> None:
        """What a compactor puts are segments."""

    async def judge(self, key: str, objects: ObjectStore) -> None:
        """Check that the object may be deleted now."""
        parsed = parse_segment_key(key)
        assert parsed is not None
        metas = {meta.segment_id: meta for meta in await self._partition.metas()}
        meta = metas.get(parsed.segment_id)
        if meta is None:
            return
        if meta.state is not SegmentState.DELETE_STARTED or meta.deletable_ms > self._clock():
            self.wrong.append(f"{key} went while it was {meta.state}")


class WholeObjects(WatchedObjects):
    """Segments' files are put in operations that may fail too."""

    async def put_file(self, key: str, path: Path, *, kms_key_id: str = "") -> None:
        number = self._process.operation_count
        self._process.before(is_write=True)
        await super().put_file(key, path, kms_key_id=kms_key_id)
        self._process.after(number)


async def fill(partition: TieredPartition) -> RandomLog:
    log = RandomLog()
    for keys in ("ab", "ac", "ad", "be", "af", "ca"):
        await partition.copy([plain(log, *keys), plain(log, keys[0])])
    return log


@pytest.mark.parametrize("fault", Fault)
async def test_wherever_it_stops_readers_have_the_old_or_the_new_and_the_next_run_ends_it(
    tmp_path: Path, fault: Fault
) -> None:
    """The tier is checked by every reader after each of the operations has failed."""
    async with tiered_partition(tmp_path, configs=CONFIGS) as partition:
        log, number, witness = await fill(partition), 0, PointedAt(partition)
        while True:
            process = Process(number, fault)
            tier = partition.tier(
                store=WatchedMetadata(partition.store, process, witness),
                objects=WholeObjects(partition.objects, process, witness),
            )
            with contextlib.suppress(Crash, StoreUnavailable, OutcomeUnknown):
                await compact_partition(tier, is_forced=True)
            expected = rows_of(oracle(committed_records(log.batches), log.end_offset))
            seen = read_rows(partition)
            assert set(expected) <= set(seen)  # old or new, never less
            found = await partition.problems()
            assert [p for p in found if p.endswith((ORPHAN, LEFTOVER))] == []
            if process.operation_count <= number:
                break
            partition.clock.now_ms += CLAIM_MS  # nobody renews a dead one's claim
            await compacted(partition)
            assert read_rows(partition) == expected
            assert await partition.problems() == []
            await let_replaced_go(partition)
            number += 1
            # Something new to compact for the next.
            await partition.copy([plain(log, "a", "b")])
        assert witness.wrong == []
        assert number > 15


class Interfering(WatchedMetadata):
    """Does something else before the first commit that finishes a segment."""

    def __init__(self, partition: TieredPartition, action: object) -> None:
        super().__init__(partition.store, Process(), PointedAt(partition))
        self._action = action
        self._is_done = False

    async def commit(self, writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
        finishes = any(
            write.body is not None and write.body.get("state") == "copy-finished"
            for write in writes
        )
        if finishes and not self._is_done:
            self._is_done = True
            await self._action()  # type: ignore[operator]
        await super().commit(writes, checks=checks)


async def test_retention_that_takes_a_segment_meanwhile_wins(tmp_path: Path) -> None:
    async with tiered_partition(tmp_path, configs=CONFIGS) as partition:
        log = await fill(partition)

        async def retain() -> None:
            first = (await partition.finished())[0]
            await partition.move_log_start(first.end_offset)
            await start_deletions(partition.store, [first], deletable_ms=partition.clock())

        tier = partition.tier(store=Interfering(partition, retain))
        report = await compact_partition(tier, is_forced=True)
        assert report.outcome is CompactionOutcome.COMPACTED
        expected = oracle(committed_records(log.batches), log.end_offset)
        assert [r.offset for r in await reads(partition)] == [r.offset for r in expected]
        await let_replaced_go(partition)
        assert (await partition.finished())[0].base_offset == 3


async def reads(partition: TieredPartition) -> list[object]:
    """Return what a reader gets of the finished segments, once what was deleted is gone."""
    await let_replaced_go(partition)
    return list(partition.read_bucket())


async def test_two_compactors_at_once_do_no_harm(tmp_path: Path) -> None:
    async with tiered_partition(tmp_path, configs=CONFIGS) as partition:
        log = await fill(partition)
        runs = (compact_partition(partition.tier(), is_forced=True) for _ in range(3))
        reports = await asyncio.gather(*runs)
        outcomes = [report.outcome for report in reports]
        assert CompactionOutcome.COMPACTED in outcomes
        expected = rows_of(oracle(committed_records(log.batches), log.end_offset))
        assert read_rows(partition) == expected
        assert await partition.problems() == []
        await let_replaced_go(partition)


async def test_who_holds_a_claim_that_has_run_out_loses_to_who_took_it_over(tmp_path: Path) -> None:
    async with tiered_partition(tmp_path, configs=CONFIGS) as partition:
        log = await fill(partition)

        async def take_over() -> None:
            partition.clock.now_ms += CLAIM_MS
            await compacted(partition)

        tier = partition.tier(store=Interfering(partition, take_over))
        report = await compact_partition(tier, is_forced=True)
        assert report.outcome is CompactionOutcome.CLAIMED
        expected = rows_of(oracle(committed_records(log.batches), log.end_offset))
        assert read_rows(partition) == expected
        assert await partition.problems() == []
        await let_replaced_go(partition)


async def test_nothing_is_left_of_a_topic_that_is_deleted_meanwhile(tmp_path: Path) -> None:
    async with tiered_partition(tmp_path, configs=CONFIGS) as partition:
        await fill(partition)
        topic = dataclasses.replace(partition.topic, version=1)
        tombstone = DeletedTopic(
            topic_id=topic.topic_id, name=topic.name, partition_count=1, deleted_ms=0
        )

        async def delete_topic() -> None:
            await partition.store.commit([records.delete(topic), records.put(tombstone)])
            await clean_deleted_topic(
                partition.store, partition.objects, tombstone, None, cluster_id=CLUSTER_ID
            )

        tier = partition.tier(store=Interfering(partition, delete_topic))
        with pytest.raises(UnknownTopicOrPartition):
            await compact_partition(tier, is_forced=True)
        assert await partition.metas() == []
        assert await partition.object_keys() == set()
        assert await partition.store.list("rewrite-claim") == []


async def test_a_new_leader_leaves_a_rewrite_under_way_alone(tmp_path: Path) -> None:
    """It cleans up what other leaders have begun to copy; this is looked after by claims."""
    async with tiered_partition(tmp_path, configs=CONFIGS) as partition:
        await fill(partition)
        found: list[SegmentMeta] = []

        async def take_over() -> None:
            metas = await read_segments(partition.store, partition.topic.topic_id, 0)
            found.extend(m for m in metas if m.state is SegmentState.COPY_STARTED)
            now_ms = partition.clock()
            assert select_leftovers(metas, under_way=(), now_ms=now_ms) == []
            late_ms = now_ms + 86_400_001
            assert select_leftovers(metas, under_way=(), now_ms=late_ms) == found

        tier = partition.tier(store=Interfering(partition, take_over))
        await compact_partition(tier, is_forced=True)
        assert len(found) == 1


async def test_a_claim_is_refused_while_another_holds_it(tmp_path: Path) -> None:
    async with tiered_partition(tmp_path) as partition:
        await fill(partition)
        async with partition.tier().claimed():
            with pytest.raises(PartitionClaimed):
                async with partition.tier().claimed():
                    pass
            report = await compact_partition(partition.tier(), is_forced=True)
            assert report.outcome is CompactionOutcome.CLAIMED
        await compacted(partition)
