"""The objects of a node's chain go once their records are tiered, and not before."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode
from tidelog_core.config import NodeConfig
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.errors import StoreUnavailable
from tidelog_core.metadata import records
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Cluster, DeletedTopic, Partition
from tidelog_core.metadata.store import ANY_VERSION, Write
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.tier.keys import log_start_key
from tidelog_node.diskless.chain import collection
from tidelog_node.diskless.chain.collection import ChainCollection

from tests.support.batches import batch_of
from tests.support.node_context import node_context
from tests.support.node_process import NodeProcess
from tests.support.segment_items import put_segments, segment_meta
from tests.support.waiting import eventually_async
from tests.support.wal_objects import CLUSTER
from tests.support.wal_scene import WalScene
from tests.support.wire_client import WireClient

WAIT_SECONDS = 60.0


class Collecting:
    """A chain with two partitions, a folder, a metadata store, and what collects the chain."""

    def __init__(self, folder: Path) -> None:
        self.scene = WalScene(folder)
        self.store = SqliteMetadataStore(folder / "metadata.db")
        self.config = NodeConfig()
        self.chains = ChainStore(self.scene.worker, CLUSTER)
        self.node = node_context(self.store, ClusterView(self.store), config=lambda: self.config)
        self.collection = ChainCollection(
            self.node,
            replicas=lambda: iter(self.scene.logs),
            chain=lambda: self.scene.chain,
            chains=self.chains,
            objects=self.scene.worker,
        )

    async def append(self, *numbers: int) -> None:
        """Have one object with a record of each of these partitions."""
        chain = self.scene.chain
        end = chain.committed_end
        for number in numbers:
            self.scene.logs[number].append()
        await eventually_async(lambda: chain.committed_end > end and not chain.buffered_bytes)

    async def sequences(self) -> list[int]:
        return [one.sequence for one in await self.chains.list(self.scene.name)]

    async def visited(self) -> list[int]:
        """Return what is left after a visit."""
        await self.collection.visit()
        return await self.sequences()


@pytest.fixture
async def collecting(tmp_path: Path) -> AsyncIterator[Collecting]:
    made = Collecting(tmp_path)
    made.scene.lead(2)
    yield made
    await made.scene.close()
    await made.store.close()


async def test_an_object_goes_when_the_last_of_its_partitions_is_tiered(
    collecting: Collecting,
) -> None:
    first, second = collecting.scene.logs
    for _ in range(3):
        await collecting.append(0, 1)
    assert await collecting.visited() == [0, 1, 2]
    first.log.set_tiered_up_to(2)
    assert await collecting.visited() == [0, 1, 2]
    second.log.set_tiered_up_to(1)
    assert await collecting.visited() == [1, 2]
    for log in (first, second):
        log.log.set_tiered_up_to(3)
    # The last one says to heirs what has existed.
    assert await collecting.visited() == [2]
    await collecting.append(0)
    assert await collecting.visited() == [3]
    assert len(collecting.scene.chain.committed) == 1
    traffic = collecting.node.counters.chain
    assert (traffic.collected_count, traffic.kept_count) == (3, 1)


async def test_records_of_an_idle_chain_go_too(collecting: Collecting) -> None:
    """The last object stays as long as it is the last: so one without records follows it."""
    collecting.config = dataclasses.replace(NodeConfig(), diskless_wal_max_age_ms=1)
    (log, _), chain = collecting.scene.logs, collecting.scene.chain
    for _ in range(2):
        await collecting.append(0)
    log.log.set_tiered_up_to(1)
    for _ in range(3):
        await asyncio.sleep(0.01)
        assert await collecting.visited() == [1]  # it is needed
    log.log.set_tiered_up_to(2)
    assert await collecting.visited() == [1]
    await asyncio.sleep(0.01)
    await collecting.visited()
    await eventually_async(lambda: chain.committed_end == 3)
    for _ in range(3):
        await asyncio.sleep(0.01)
        assert await collecting.visited() == [2]  # and no more follow
    await collecting.append(0)
    assert await collecting.visited() == [3]


async def test_a_log_start_alone_makes_nothing_unneeded(collecting: Collecting) -> None:
    (log, _) = collecting.scene.logs
    for _ in range(3):
        await collecting.append(0)
    log.log.advance_log_start_offset(2)
    # What the copier notes where nothing is tiered: «up to the log's start».
    log.log.set_tiered_up_to(2)
    assert await collecting.visited() == [0, 1, 2]
    log.log.set_tiered_up_to(3)
    assert await collecting.visited() == [2]


async def test_deleted_records_of_an_idle_partition_stay_as_long_as_producers_repeat_them(
    collecting: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets no more records, so the tier never passes them."""
    await collecting.store.commit([records.put(Cluster(cluster_id=CLUSTER))])
    await collecting.node.view.refresh()
    (log, _) = collecting.scene.logs
    for _ in range(4):
        await collecting.append(0)
    log.log.advance_log_start_offset(2)
    monkeypatch.setattr(collection, "REPEATED_SECONDS", 0.0)
    # A restoration would take what is missing for lost: the bucket does not know the log start.
    for _ in range(2):
        assert await collecting.visited() == [0, 1, 2, 3]
    key = log_start_key(CLUSTER, log.partition.topic, *log.name, 2)
    await collecting.scene.worker.put(key, b"")
    monkeypatch.setattr(collection, "REPEATED_SECONDS", 600.0)
    log.log.advance_log_start_offset(3)
    key = log_start_key(CLUSTER, log.partition.topic, *log.name, 3)
    await collecting.scene.worker.put(key, b"")
    for _ in range(2):
        assert await collecting.visited() == [0, 1, 2, 3]
    monkeypatch.setattr(collection, "REPEATED_SECONDS", 0.0)
    assert await collecting.visited() == [3]
    await collecting.append(0)
    assert await collecting.visited() == [3, 4]


async def test_what_was_tiered_goes_also_if_the_log_start_has_passed_it_since(
    collecting: Collecting,
) -> None:
    """Kafka Streams deletes what it has read, every 30 s: between two visits."""
    (log, _) = collecting.scene.logs
    for _ in range(4):
        await collecting.append(0)
    log.log.set_tiered_up_to(2)
    log.log.advance_log_start_offset(3)
    log.log.set_tiered_up_to(3)  # «up to the log's start»
    assert await collecting.visited() == [2, 3]


async def test_a_store_that_refuses_is_asked_again(
    collecting: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        await collecting.append(0)
    collecting.scene.logs[0].log.set_tiered_up_to(3)

    async def refuse(keys: object) -> None:
        raise StoreUnavailable("slow down")

    with monkeypatch.context() as patch:
        patch.setattr(collecting.scene.store, "delete", refuse)
        with pytest.raises(StoreUnavailable):
            await collecting.visited()
    assert await collecting.visited() == [2]


async def test_of_partitions_that_are_led_elsewhere_the_items_say_what_is_tiered(
    collecting: Collecting,
) -> None:
    scene, store = collecting.scene, collecting.store
    moved, stays = scene.logs
    for _ in range(2):
        await collecting.append(0, 1)
    await collecting.append(1)
    stays.log.set_tiered_up_to(3)
    moved.is_leader = False
    scene.chain.leave(moved)
    assert await collecting.visited() == [0, 1, 2]  # there is no item of it
    item = Partition(
        topic_id=moved.topic_id, partition=0, replicas=(2,), leader=2, leader_epoch=1, isr=(2,)
    )
    await store.commit([records.put(item)])
    assert await collecting.visited() == [0, 1, 2]
    tiered = segment_meta(0, 1, topic_id=moved.topic_id, partition=0)
    await put_segments(store, [tiered])
    assert await collecting.visited() == [1, 2]
    await put_segments(store, [dataclasses.replace(tiered, base_offset=1, end_offset=2)])
    assert await collecting.visited() == [2]


async def moved_and_purged(collecting: Collecting, *, log_start_offset: int) -> Partition:
    """Have the first partition led elsewhere, with records that were deleted untiered.

    Its two records are in the chain's objects 0 and 1. Returns the item that says so.
    """
    scene = collecting.scene
    moved, stays = scene.logs
    for _ in range(2):
        await collecting.append(0, 1)
    await collecting.append(1)
    stays.log.set_tiered_up_to(3)
    moved.is_leader = False
    scene.chain.leave(moved)
    wal = (EpochChain(0, scene.name, 0), EpochChain(1, ChainName(2, UUID(int=2)), 2))
    item = Partition(
        topic_id=moved.topic_id, partition=0, replicas=(2,), leader=2, leader_epoch=1, isr=(2,),
        log_start_offset=log_start_offset, wal=wal,
    )  # fmt: skip
    await collecting.store.commit([records.put(item)])
    return item


async def test_what_moved_away_and_is_purged_as_it_is_read_goes_with_its_chain(
    collecting: Collecting,
) -> None:
    """Its tier is empty whenever it is read, and the log start alone says nothing."""
    store = collecting.store
    item = await moved_and_purged(collecting, log_start_offset=5)
    assert await collecting.visited() == [0, 1, 2]
    stored = await store.get(item.item_id)
    assert stored is not None
    cut = dataclasses.replace(Partition.from_item(stored), wal=item.wal[1:])
    await store.commit([records.put(cut)])
    assert await collecting.visited() == [2]


async def test_deleted_records_of_an_earlier_leader_stay_as_long_as_producers_repeat_them(
    collecting: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new leader keeps the chain in the item, in case it dies soon."""
    store = collecting.store
    item = await moved_and_purged(collecting, log_start_offset=2)
    for _ in range(2):
        assert await collecting.visited() == [0, 1, 2]
    monkeypatch.setattr(collection, "REPEATED_SECONDS", 0.0)
    again = dataclasses.replace(item, version=1, leader_epoch=2)
    await store.commit([records.put(again)])
    assert await collecting.visited() == [2]


async def test_of_a_deleted_topic_nothing_is_needed(collecting: Collecting) -> None:
    for _ in range(2):
        await collecting.append(0)
    (log, _) = collecting.scene.logs
    log.is_leader = False
    collecting.scene.chain.leave(log)
    tomb = DeletedTopic(topic_id=log.topic_id, name="t", partition_count=1, deleted_ms=1)
    await collecting.store.commit([records.put(tomb)])
    assert await collecting.visited() == [1]


async def test_a_tombstone_that_goes_before_the_visit_is_remembered(
    collecting: Collecting,
) -> None:
    for _ in range(2):
        await collecting.append(0)
    (log, _) = collecting.scene.logs
    log.is_leader = False
    collecting.scene.chain.leave(log)
    view = collecting.node.view
    unsubscribe = view.subscribe(collecting.collection.note_image)
    tomb = DeletedTopic(topic_id=log.topic_id, name="t", partition_count=1, deleted_ms=1)
    await collecting.store.commit([records.put(tomb)])
    await view.refresh()
    key = records.deleted_topic_key(log.topic_id)
    await collecting.store.commit([Write(key, None, ANY_VERSION, True)])
    await view.refresh()
    assert not view.image.deleted_topics
    assert await collecting.visited() == [1]
    await collecting.visited()
    assert not collecting.collection._deleted_topics  # nothing of it is left in the chain
    unsubscribe()


async def test_an_item_that_cannot_be_read_keeps_its_own_objects_alone(
    collecting: Collecting,
) -> None:
    moved, stays = collecting.scene.logs
    await collecting.append(1)
    await collecting.append(0)
    await collecting.append(1)
    stays.log.set_tiered_up_to(2)
    moved.is_leader = False
    collecting.scene.chain.leave(moved)
    key = records.partition_key(moved.topic_id, 0)
    await collecting.store.commit([Write(key, {"nonsense": 1}, ANY_VERSION, False)])
    assert await collecting.visited() == [1, 2]


async def test_few_items_are_read_in_one_visit(
    collecting: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection, "READ_AT_ONCE_MAX", 3)
    scene = collecting.scene
    scene.lead(5)
    count = len(scene.logs)
    await collecting.append(*range(count))
    for log in scene.logs:
        log.is_leader = False
        scene.chain.leave(log)
    read: list[int] = []
    get_many = collecting.store.get_many

    async def counted(ids: object) -> object:
        read.append(sum("partition:" in one.collection for one in ids))  # type: ignore[attr-defined]
        return await get_many(ids)  # type: ignore[arg-type]

    monkeypatch.setattr(collecting.store, "get_many", counted)
    for _ in range(4):
        await collecting.collection.visit()
    # All of them come round.
    assert read == [3] * 4
    assert len(collecting.collection._left_ends) == count


async def test_old_segments_are_sealed_so_that_they_are_tiered(collecting: Collecting) -> None:
    first, second = collecting.scene.logs
    await collecting.append(0)
    await collecting.collection.visit()
    assert first.log.active_segment_base_offset == 0
    collecting.config = NodeConfig(diskless_wal_max_age_ms=1)
    second.is_leader = False
    second.append()
    await asyncio.sleep(0.01)
    await collecting.collection.visit()
    assert first.log.active_segment_base_offset == 1
    assert second.log.active_segment_base_offset == 0  # its leader does that
    assert (first.changed_count, second.changed_count) == (1, 0)
    await collecting.collection.visit()  # There is nothing to seal.
    assert first.changed_count == 1


async def test_a_chain_that_has_ended_is_left_to_others(collecting: Collecting) -> None:
    for _ in range(2):
        await collecting.append(0)
    collecting.scene.logs[0].log.set_tiered_up_to(2)
    collecting.scene.chain.abandon("sealed")
    assert await collecting.visited() == [0, 1]


# -- a node --

PRODUCER, COUNT = 7_000, 20
CONFIG = {
    "diskless.wal.max.age.ms": "500",
    "diskless.append.puts.per.second.max": "0",
    "remote.task.interval.ms": "100",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


def send(client: WireClient, number: int) -> int:
    """Send the producer's batch with this number until it is acknowledged; return its offset."""
    batch = batch_of(b"value %d" % number, producer=(PRODUCER, 0, number))
    deadline = time.monotonic() + WAIT_SECONDS
    while (answer := client.produce("t", batch, acks=-1)).error_code is not ErrorCode.none:
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)
    return int(answer.base_offset)


def values_of(node: NodeProcess, count: int) -> list[bytes | None]:
    settings = {"bootstrap.servers": node.address, "group.id": "g", "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition("t", 0, 0)])
    found: list[bytes | None] = []
    deadline = time.monotonic() + WAIT_SECONDS
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.append(message.value())
    consumer.close()
    return found


@pytest.mark.slow
def test_what_a_node_has_collected_is_back_from_the_tier_after_its_disk_is_lost(
    tmp_path: Path,
) -> None:
    """The producers are known too: the tier has them, although their objects are gone."""
    objects = tmp_path / "objects"
    node = NodeProcess(
        tmp_path / "node",
        metadata_store=f"sqlite://{tmp_path}/metadata.db",
        object_store=f"file://{objects}",
        config=CONFIG,
    )
    with node:
        admin = AdminClient({"bootstrap.servers": node.address})
        topic = NewTopic("t", 1, 1, config={"diskless.enable": "true"})
        admin.create_topics([topic])["t"].result(WAIT_SECONDS)
        with WireClient(node.port) as client:
            offsets = [send(client, number) for number in range(COUNT)]
            made = len(list(objects.rglob("*.wal")))
            deadline = time.monotonic() + WAIT_SECONDS
            while len(left := sorted(objects.rglob("*.wal"))) > 2:
                assert time.monotonic() < deadline, left
                time.sleep(0.2)
            offsets += [send(client, COUNT)]
        assert offsets == list(range(COUNT + 1))
        assert made > 2
        node.kill()
        node.data_dir.rename(node.data_dir.with_name("lost"))
        node.start()
        with WireClient(node.port) as client:
            for number in (COUNT, COUNT - 1, COUNT - 2):
                assert send(client, number) == number
            assert send(client, COUNT + 1) == COUNT + 1
        wanted = [b"value %d" % number for number in range(COUNT + 2)]
        assert values_of(node, len(wanted)) == wanted
