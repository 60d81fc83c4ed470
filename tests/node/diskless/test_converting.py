"""Topics become diskless and replicated again under load, with nodes killed in between.

Nothing that was acknowledged is lost, doubled or out of order, and transactions stay whole.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from tidelog_core.metadata.records import Partition, Topic, partition_key, topic_key
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore

from tests.support.replicated_cluster import ReplicatedCluster, replicated_cluster
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow
TOPIC = "t"
SECONDS_MAX = 60.0
RECORDS_PER_TRANSACTION = 3


class Load:
    """An idempotent producer, and a transactional one that aborts every third transaction."""

    def __init__(self, cluster: ReplicatedCluster) -> None:
        self._cluster = cluster
        self._stop = threading.Event()
        self.acked: list[bytes] = []
        self.committed: list[bytes] = []
        self.aborted: list[bytes] = []
        self.problems: list[BaseException] = []
        self.threads = [
            threading.Thread(target=self._run, args=(work,))
            for work in (self._idempotent, self._transactional)
        ]

    def _run(self, work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:
            self.problems.append(error)

    def _idempotent(self) -> None:
        producer = self._cluster.producer(**{"message.timeout.ms": 60_000})

        def delivered(error: object, message: object) -> None:
            if error is not None:
                self.problems.append(KafkaException(error))
            else:
                self.acked.append(message.value())  # type: ignore[attr-defined]

        number = 0
        while not self._stop.is_set():
            producer.produce(TOPIC, b"i%d" % number, partition=0, on_delivery=delivered)
            number += 1
            producer.poll(0.002)
        assert producer.flush(60) == 0

    def _transactional(self) -> None:
        producer = self._cluster.producer(
            **{"transactional.id": "load", "transaction.timeout.ms": 60_000}
        )
        producer.init_transactions(60)
        number = 0
        while not self._stop.is_set():
            values = [b"t%d.%d" % (number, n) for n in range(RECORDS_PER_TRANSACTION)]
            is_commit = number % 3 != 2
            number += 1
            producer.begin_transaction()
            for value in values:
                producer.produce(TOPIC, value, partition=0)
            _end(producer, is_commit=is_commit)
            (self.committed if is_commit else self.aborted).extend(values)

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self.threads:
            thread.join()
        assert self.problems == []

    def wait_more(self, count: int = 200) -> None:
        """Wait until so many more records, and a few transactions, are acknowledged."""
        acked, committed = len(self.acked) + count, len(self.committed) + 9

        def has_more() -> bool:
            return bool(self.problems) or (
                len(self.acked) >= acked and len(self.committed) >= committed
            )

        eventually(has_more, "the load goes on", seconds=SECONDS_MAX)
        assert self.problems == []


def _end(producer: Producer, *, is_commit: bool) -> None:
    while True:
        try:
            if is_commit:
                producer.commit_transaction(60)
            else:
                producer.abort_transaction(60)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return


def partition_of(store: Path) -> Partition:
    async def read() -> Partition:
        metadata = SqliteMetadataStore(store)
        try:
            topic = await metadata.get(topic_key(TOPIC))
            assert topic is not None
            item = await metadata.get(partition_key(Topic.from_item(topic).topic_id, 0))
            assert item is not None
            return Partition.from_item(item)
        finally:
            await metadata.close()

    return asyncio.run(read())


@contextmanager
def converting(folder: Path, **options: object) -> Iterator[tuple[ReplicatedCluster, Path]]:
    store = folder / "metadata.db"
    with replicated_cluster(folder, metadata_store=f"sqlite://{store}", **options) as cluster:
        yield cluster, store


def convert(cluster: ReplicatedCluster, *, is_diskless: bool) -> None:
    cluster.alter(TOPIC, diskless_enable="true" if is_diskless else "false")


def wait_converted(store: Path, *, is_diskless: bool) -> None:
    what = "diskless" if is_diskless else "replicated"
    eventually(
        lambda: partition_of(store).is_diskless == is_diskless,
        f"the partition is {what}",
        seconds=SECONDS_MAX,
    )


def read_all(cluster: ReplicatedCluster) -> list[bytes]:
    """Return what a consumer of committed records finds, up to the end of the partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.addresses,
            "group.id": "readers",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[bytes] = []
    try:
        while True:
            message = consumer.poll(SECONDS_MAX)
            assert message is not None, f"nothing more came after {len(found)} records"
            if message.error() is not None:
                return found
            found.append(message.value())
    finally:
        consumer.close()


def check_whole(cluster: ReplicatedCluster, load: Load) -> None:
    found = read_all(cluster)
    assert [one for one in found if one.startswith(b"i")] == load.acked
    assert [one for one in found if one.startswith(b"t")] == load.committed


def test_a_topic_is_converted_both_ways_twice_under_load(tmp_path: Path) -> None:
    with converting(tmp_path) as (cluster, store):
        cluster.create(TOPIC, min_insync_replicas="2", segment_bytes="100000")
        with Load(cluster) as load:
            load.wait_more()
            for is_diskless in (True, False, True, False):
                convert(cluster, is_diskless=is_diskless)
                wait_converted(store, is_diskless=is_diskless)
                load.wait_more()
        check_whole(cluster, load)
        cluster.wait_same_logs(TOPIC)
        eventually(lambda: partition_of(store).wal == (), "the chains are forgotten")


def test_nodes_are_killed_between_the_steps(tmp_path: Path) -> None:
    with converting(tmp_path) as (cluster, store):
        cluster.create(TOPIC, min_insync_replicas="2", segment_bytes="100000")
        with Load(cluster) as load:
            for is_diskless in (True, False, True, False):
                load.wait_more()
                leader = cluster.node_leading(TOPIC)
                convert(cluster, is_diskless=is_diskless)
                leader.kill()
                wait_converted(store, is_diskless=is_diskless)
                load.wait_more()
                leader.start()
                cluster.wait_isr(TOPIC, {1, 2, 3})
        check_whole(cluster, load)


def test_all_nodes_are_lost_right_after_a_topic_became_diskless(tmp_path: Path) -> None:
    """What the replicas had acknowledged is in the bucket as well."""
    with converting(tmp_path) as (cluster, store):
        cluster.create(TOPIC, min_insync_replicas="2")
        with Load(cluster) as load:
            load.wait_more()
        convert(cluster, is_diskless=True)
        wait_converted(store, is_diskless=True)
        for node in cluster.nodes.values():
            node.kill()
            # Not removed: its workers still remove their sockets.
            node.data_dir.rename(tmp_path / f"lost {node.data_dir.name}")
        for node in cluster.nodes.values():
            node.spawn()
        for node in cluster.nodes.values():
            node.wait_ready()
        check_whole(cluster, load)
