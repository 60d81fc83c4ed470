"""Sealed segments go to the tier, byte for byte, and then away from local disk."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from pathlib import Path
from uuid import uuid4

import pytest
from tidelog_core.log.producers.producer_snapshot import encode_snapshot
from tidelog_core.log.values import AppendOrigin
from tidelog_core.metadata import records
from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.metadata.store import ALL_KEYS, ANY_VERSION, Item, KeyRange, Write
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.records.batch import Record, build_batch
from tidelog_core.records.control import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_marker,
)
from tidelog_core.tier.index_file import IndexFile
from tidelog_core.tier.keys import segment_keys
from tidelog_core.tier.manifest import ClusterManifest, TopicManifest
from tidelog_node.tier.led_partition import known_tiered_end

from tests.support.hand_chain import DISKLESS, HandChain
from tests.support.log_building import fill, start_unfilled
from tests.support.tier_node import START_MS, TOPIC, TierNode, running_node
from tests.support.waiting import eventually_async


async def test_sealed_segments_are_copied_whole_with_two_objects_each(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        replica = await node.create_topic()
        segments = node.produce_segments(replica, 3)
        node.produce(replica, 2)  # the active segment stays
        metas = await node.wait_copied(replica, 3)
        assert [(m.base_offset, m.end_offset) for m in metas] == [
            (0, 50),
            (50, 100),
            (100, 150),
        ]
        assert await node.verify(replica) == segments
        assert len(await node.objects()) == 6
        assert replica.log.tiered_up_to == 150
        assert replica.log.local_log_start_offset == 0  # nothing is old yet
        status = await node.tier.client.status()
        assert status["upload_count"] == 3


async def test_a_diskless_log_is_copied_up_to_the_end_of_its_chain_without_a_flush(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path) as node:
        replica = await node.create_topic(configs={**DISKLESS, "local.retention.bytes": "0"})
        HandChain().enter(node.replicas, replica, replica.leader_epoch)
        segments = node.produce_segments(replica, 3, flushes=False)
        node.produce(replica, 2)
        replica.on_chain_committed(149)  # a record short of the third segment's end
        await node.wait_copied(replica, 2)
        assert await node.verify(replica) == segments[:2]
        assert replica.log.recovery_point == 0

        async def starts_at(offset: int) -> bool:
            return replica.log.local_log_start_offset == offset

        await eventually_async(lambda: starts_at(100))  # What the chain lacks stays.
        replica.on_chain_committed(150)
        await node.wait_copied(replica, 3)
        await eventually_async(lambda: starts_at(150))


async def test_a_log_that_is_still_to_be_filled_is_copied_once_it_is_whole(tmp_path: Path) -> None:
    """Else the tier would have a gap, and everything behind it would be copied for ever."""
    async with running_node(tmp_path) as node:
        replica = await node.create_topic(configs={"local.retention.bytes": "0"})
        (first,) = node.produce_segments(replica, 1)
        await node.wait_copied(replica, 1)
        missing = node.produce(replica, 5)
        log, epochs = replica.log, replica.log.leader_epochs
        producers = log.producers.at(100)
        log.truncate_to(50)
        snapshot = encode_snapshot(log.producers.state)
        start_unfilled(log, 100, leader_epochs=epochs, producers=producers)
        later = node.produce_segments(replica, 2)
        assert known_tiered_end(log) == 50
        led = node.tier._partitions.lead(replica)
        async with led.lock:
            await node.tier._copier.copy(led)
        assert len(await node.metas(replica)) == 1
        assert log.tiered_up_to == log.copied_end == 50
        assert log.local_log_start_offset == 100
        side = log.begin_filling(leader_epochs=epochs, producer_snapshot=snapshot)
        side.append_as_follower(memoryview(bytearray(missing)))
        fill(log, side)
        log.flush()
        replica.note_changed()
        await node.wait_copied(replica, 4)
        assert await node.verify(replica) == [first, missing, *later]


async def test_nothing_of_a_log_that_is_still_to_be_filled_expires(tmp_path: Path) -> None:
    """Neither by bytes nor by time: nobody knows how much there is, and how old it is."""
    async with running_node(tmp_path) as node:
        replica = await node.create_topic(configs={"retention.bytes": "-1", "retention.ms": "-1"})
        missing = node.produce(replica, 5)
        log, epochs = replica.log, replica.log.leader_epochs
        producers = log.producers.at(50)
        log.truncate_to(0)
        snapshot = encode_snapshot(log.producers.state)
        start_unfilled(log, 50, leader_epochs=epochs, producers=producers)
        node.produce_segments(replica, 3)
        await node.configure({"retention.bytes": "1", "retention.ms": "1"})
        await node.tier.apply_retention()
        assert (log.log_start_offset, log.local_log_start_offset) == (0, 50)
        side = log.begin_filling(leader_epochs=(), producer_snapshot=snapshot)
        side.append_as_follower(memoryview(bytearray(missing)))
        fill(log, side)

        async def has_expired() -> bool:
            await node.tier.apply_retention()
            return log.log_start_offset > 50

        await eventually_async(has_expired)


async def test_the_bucket_tells_which_cluster_and_topic_it_holds(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        replica = await node.create_topic(configs={"retention.ms": "-1"})
        node.produce_segments(replica, 1)
        await node.wait_copied(replica, 1)
        cluster_id = node.view.image.cluster_id
        root = node.objects_folder / cluster_id
        assert ClusterManifest.parse((root / "cluster.json").read_bytes()).cluster_id == cluster_id
        manifest = root / f"{TOPIC}-{replica.topic_id}" / "topic.json"
        assert TopicManifest.parse(manifest.read_bytes()).configs == {"retention.ms": "-1"}
        await node.configure({"retention.ms": "-1", "segment.bytes": "1000000"})
        node.produce_segments(replica, 1)
        await node.wait_copied(replica, 2)
        changed = TopicManifest.parse(manifest.read_bytes())
        assert changed.configs["segment.bytes"] == "1000000"
        # Without anything to copy, it is told of changes with retention's rounds.
        await node.configure({"retention.ms": "7"})
        for replicas, removing, factor in (((1, 2, 3), (3,), 2), ((1, 2, 3), (), 3)):
            await node.change_partition(replica, replicas=replicas, removing=removing)
            await node.view.refresh()
            await node.tier.apply_retention()
            changed = TopicManifest.parse(manifest.read_bytes())
            assert (changed.configs, changed.replication_factor) == (
                {"retention.ms": "7"},
                factor,
            )
        before = manifest.stat().st_ino
        await node.tier.apply_retention()
        assert manifest.stat().st_ino == before
        # Another leader has told of settings that were changed back since.
        whole = manifest.read_bytes()
        manifest.write_bytes(whole.replace(b'"7"', b'"8"'))
        await node.configure({"retention.ms": "8"})
        await node.configure({"retention.ms": "7"})
        await node.tier.apply_retention()
        assert manifest.read_bytes() == whole


async def test_the_bucket_tells_of_topics_that_have_tiered_nothing_yet(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        replica = await node.create_topic()
        await node.create_topic("local", configs={"remote.storage.enable": "false"})
        await node.tier.apply_retention()
        root = node.objects_folder / node.view.image.cluster_id
        (manifest,) = root.glob("*/topic.json")
        assert TopicManifest.parse(manifest.read_bytes()).topic_id == replica.topic_id
        assert (root / "cluster.json").exists()


async def test_local_retention_drops_only_what_is_tiered(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        replica = await node.create_topic(
            configs={"local.retention.bytes": "0", "retention.ms": "-1"}
        )
        node.produce_segments(replica, 3)
        node.produce(replica, 1)

        async def is_evicted() -> bool:
            return replica.log.local_log_start_offset == 150

        await eventually_async(is_evicted)
        assert len(await node.finished(replica)) == 3
        assert replica.log.log_start_offset == 0
        assert len(list(replica.log.directory.glob("*.log"))) == 1


async def test_what_could_still_change_is_not_copied(tmp_path: Path) -> None:
    """Not flushed, or of an open transaction: not yet. Decided: copied with what was aborted."""

    def transactional(count: int = 10) -> bytearray:
        content = [Record(n, START_MS + n, b"k", b"v", ()) for n in range(count)]
        return bytearray(
            build_batch(
                content,
                producer_id=5,
                producer_epoch=0,
                base_sequence=0,
                is_transactional=True,
            )
        )

    async with running_node(tmp_path) as node:
        replica = await node.create_topic()
        log = replica.log
        node.produce(replica, 3)
        log.roll()
        await asyncio.sleep(0.2)
        assert await node.metas(replica) == []  # not flushed
        replica.append(transactional())
        log.roll()
        node.produce(replica, 1)
        log.roll()
        log.flush()
        await node.wait_copied(replica, 1)
        await asyncio.sleep(0.2)
        assert len(await node.metas(replica)) == 1  # the transaction is open
        marker = bytearray(
            build_end_transaction_marker(
                EndTransactionMarker(ControlType.ABORT, 0),
                producer_id=5,
                producer_epoch=0,
                timestamp_ms=START_MS,
            )
        )
        info = log.append_as_leader(marker, leader_epoch=0, origin=AppendOrigin.COORDINATOR)
        log.advance_high_watermark(info.last_offset + 1)
        metas = await node.wait_copied(replica, 3)
        objects = await node.objects()
        indexes = [
            IndexFile.parse(objects[segment_keys(node.view.image.cluster_id, TOPIC, m).index])
            for m in metas
        ]
        # The marker lies in the active segment, yet the segment's own index knows.
        aborted = [[(t.producer_id, t.first_offset) for t in i.aborted] for i in indexes]
        assert aborted[0] == []
        assert aborted[1] == [(5, 30)]
        read = await node.read(replica, 35, max_bytes=1, include_aborted=True)
        assert [t.first_offset for t in read.aborted_transactions] == [30]


async def test_a_worker_killed_in_the_middle_of_an_upload_is_replaced_and_the_copy_goes_on(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path) as node:
        replica = await node.create_topic()
        for killed in range(3):
            pid = node.tier.client.worker_pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)  # whatever it is asked now, it never answers
            segments = node.produce_segments(replica, 1)

            async def is_started() -> bool:
                metas = await node.metas(replica)
                return any(m.state is SegmentState.COPY_STARTED for m in metas)

            if killed < 2:  # the manifests come first the first time
                await asyncio.sleep(0.1)
            else:
                await eventually_async(is_started)
            os.kill(pid, signal.SIGKILL)
            metas = await node.wait_copied(replica, killed + 1)
            assert (await node.verify(replica))[-1:] == segments
            assert node.tier.client.worker_pid != pid
            assert len(await node.objects()) == 2 * len(metas)
        assert node.tier.client.restart_count == 3


async def test_a_copy_left_half_done_is_cleaned_up_by_the_next_leader(tmp_path: Path) -> None:
    """Whatever step a crash fell on, the next start ends with whole segments and no litter."""

    async def crash(node: TierNode, *, objects: int) -> None:
        """Leave what a node leaves that dies after so many of the two objects are stored."""
        replica = await node.create_topic() if not node.view.image.topics else node.replica()
        node.produce_segments(replica, 1)
        (meta,) = await node.wait_copied(replica, 1)
        keys = segment_keys(node.view.image.cluster_id, TOPIC, meta)
        started = dataclasses.replace(
            meta, state=SegmentState.COPY_STARTED, chained_hash="", index_size_bytes=0
        )
        await node.store.commit([records.put(started)])
        if objects < 2:
            (node.objects_folder / keys.index).unlink()
        if objects < 1:
            (node.objects_folder / keys.log).unlink()

    for objects in (0, 1, 2):
        folder = tmp_path / str(objects)
        async with running_node(folder) as node:
            await crash(node, objects=objects)
            (left,) = await node.metas(node.replica())
        async with running_node(folder) as node:
            replica = node.replica()
            _ = replica.log
            (meta,) = await node.wait_copied(replica, 1)
            assert meta.segment_id != left.segment_id
            assert len(await node.verify(replica)) == 1
            assert len(await node.objects()) == 2


async def test_a_leader_that_was_replaced_finishes_nothing(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        replica = await node.create_topic()
        node.produce_segments(replica, 1)
        await node.wait_copied(replica, 1)
        await node.change_partition(replica, leader=2, leader_epoch=1)
        node.produce_segments(replica, 1)
        await asyncio.sleep(0.3)
        assert len(await node.metas(replica)) == 1

        pid = node.tier.client.worker_pid
        assert pid is not None
        await node.change_partition(replica, leader=1, leader_epoch=0)
        os.kill(pid, signal.SIGSTOP)

        async def is_started() -> bool:
            return len(await node.metas(replica)) == 2

        await eventually_async(is_started)
        await node.change_partition(replica, leader=2, leader_epoch=1)
        os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(0.3)
        states = [m.state for m in await node.metas(replica)]
        assert states == [SegmentState.COPY_FINISHED, SegmentState.COPY_STARTED]

        # The node leads again, in a new epoch: it cleans up and copies anew.
        await node.change_partition(replica, leader=1, leader_epoch=2)
        await node.view.refresh()
        metas = await node.wait_copied(replica, 2)
        assert metas[1].leader_epoch == 2
        assert len(await node.verify(replica)) == 2
        assert len(await node.objects()) == 4


async def test_a_replaced_leader_takes_away_what_its_worker_stores_too_late(tmp_path: Path) -> None:
    """The next leader has cleaned the copy up by then: nobody would ever point at it."""
    async with running_node(tmp_path) as node:
        replica = await node.create_topic()
        node.produce_segments(replica, 1)
        (kept,) = await node.wait_copied(replica, 1)
        pid = node.tier.client.worker_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        node.produce_segments(replica, 1)

        async def is_started() -> bool:
            return len(await node.metas(replica)) == 2

        await eventually_async(is_started)
        await node.change_partition(replica, leader=2, leader_epoch=1)
        started = (await node.metas(replica))[1]
        await node.store.commit([Write(started.item_id, None, ANY_VERSION)])
        os.kill(pid, signal.SIGCONT)

        async def is_stored() -> bool:
            return (await node.tier.client.status())["upload_count"] == 2

        async def is_clean() -> bool:
            cluster_id = node.view.image.cluster_id
            keys = segment_keys(cluster_id, replica.partition.topic, kept)
            return (await node.objects()).keys() == {keys.log, keys.index}

        await eventually_async(is_stored)
        await eventually_async(is_clean)
        assert len(await node.verify(replica)) == 1


async def test_what_the_next_leader_has_tiered_is_no_sign_of_lost_records(tmp_path: Path) -> None:
    """A leader that was stopped finds more in the tier than it has, and does not know why yet."""
    async with running_node(tmp_path) as node:
        replica = await node.create_topic()
        node.produce(replica, 1)
        end_offset = replica.log.log_end_offset
        await node.change_partition(replica, leader=2, leader_epoch=1)
        tiered = SegmentMeta(
            topic_id=replica.topic_id,
            partition=0,
            base_offset=0,
            end_offset=end_offset + 10,
            leader_epoch=1,
            segment_id=uuid4(),
            state=SegmentState.COPY_FINISHED,
            size_bytes=1,
            index_size_bytes=1,
            max_timestamp_ms=START_MS,
            leader_epochs=((0, 0), (1, end_offset)),
            chained_hash="",
            created_ms=START_MS,
        )
        await node.store.commit([records.put(tiered, is_logged=False)])
        await node.tier.apply_retention()
        assert not replica.log.is_offline


async def test_damage_on_disk_does_not_reach_the_tier(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        replica = await node.create_topic()
        node.produce(replica, 5)
        replica.log.roll()
        (sealed,) = replica.log.sealed_segments()
        with sealed.path.open("r+b") as file:
            file.seek(200)
            file.write(b"\xff\xff")
        replica.log.flush()

        async def is_failing() -> bool:
            return node.tier.status["failing_partition_count"] == 1

        await eventually_async(is_failing)
        assert await node.finished(replica) == []
        assert await node.objects() == {}


async def test_a_topic_without_remote_storage_stays_local(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        replica = await node.create_topic(configs={"remote.storage.enable": "false"})
        node.produce_segments(replica, 2)
        await asyncio.sleep(0.2)
        assert await node.metas(replica) == []


async def test_a_leader_reads_the_item_of_each_segment_once_when_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To take the tier over, to apply retention, to read and to copy more."""
    read: list[str] = []

    class CountingStore(SqliteMetadataStore):
        async def list(
            self, collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
        ) -> list[Item]:
            found = await super().list(collection, prefix=prefix, keys=keys)
            if collection.startswith(records.SEGMENT_COLLECTION_PREFIX):
                read.extend(item.id.key for item in found)
            return found

    async with running_node(tmp_path) as node:
        replica = await node.create_topic(configs={"local.retention.bytes": "0"})
        node.produce_segments(replica, 5)
        known = {meta.item_id.key for meta in await node.wait_copied(replica, 5)}
    monkeypatch.setattr("tests.support.tier_node.SqliteMetadataStore", CountingStore)
    async with running_node(tmp_path) as node:
        replica = node.replica()
        await node.tier.apply_retention()
        await node.read(replica, 0, max_bytes=1)
        node.produce_segments(replica, 2)

        async def is_copied() -> bool:
            return replica.log.tiered_up_to == replica.log.log_end_offset

        await eventually_async(is_copied)
        assert sorted(read) == sorted(known)


async def test_a_copy_of_a_topic_that_is_deleted_ends_unsaid(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its files go while the worker is about to read them, and no file is suspected."""
    caplog.set_level("INFO", logger="tidelog_node.tier")
    async with running_node(tmp_path) as node:
        suspected: list[int] = []
        node.tier.suspected.subscribe(lambda _, base_offset, __: suspected.append(base_offset))
        replica = await node.create_topic()
        node.produce_segments(replica, 1)
        await node.wait_copied(replica, 1)
        directory, pid = replica.log.directory, node.tier.client.worker_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            node.produce_segments(replica, 1)
            node.tier.nudge()

            async def is_started() -> bool:
                return len(await node.metas(replica)) > 1 and len(node.tier.client._unanswered) > 0

            await eventually_async(is_started)
            await node.delete_topic()
            await eventually_async(lambda: not directory.exists())
        finally:
            os.kill(pid, signal.SIGCONT)
        await eventually_async(lambda: not node.tier.status["copying_partition_count"])
    said = [one.message for one in caplog.records if one.message.startswith("tier work ")]
    assert (said, suspected) == ([], [])
