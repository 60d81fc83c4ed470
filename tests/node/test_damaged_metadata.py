"""A node whose metadata store holds an item that nobody can read: only its topic suffers."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode
from tidelog_core.metadata import records
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.store import ANY_VERSION, Body, Item, ItemKey, Write
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.records.batch import iter_headers

from tests.support.batches import batch_of
from tests.support.node_process import NodeProcess
from tests.support.stored_items import overwrite_body
from tests.support.wire_client import WireClient

T = TypeVar("T")

COUNT = 5
SETTLE_SECONDS_MAX = 60.0
NOT_LED = ErrorCode.not_leader_or_follower


class Cluster:
    """One node, the topics ``spoiled`` and ``sound`` with two partitions each, and the store."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metadata.db"
        self.node = NodeProcess(
            folder / "node",
            metadata_store=f"sqlite://{self.path}",
            object_store=f"file://{folder}/objects",
            config={"broker.session.timeout.ms": "3000"},
        )

    def create(self, *topics: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.node.address})
        for future in admin.create_topics([NewTopic(t, 2, 1) for t in topics]).values():
            future.result(60)

    def produce(self, topic: str, partition: int, count: int = 1) -> list[ErrorCode]:
        with WireClient(self.node.port) as client:
            return [
                client.produce(topic, batch_of(b"x" * 100), partition=partition).error_code
                for _ in range(count)
            ]

    def epochs(self, topic: str, partition: int) -> list[int]:
        """Return the leader epochs of all the partition's batches."""
        with WireClient(self.node.port) as client:
            found = client.fetch(topic, 0, partition=partition)
            assert found.error_code is ErrorCode.none
            return [header.partition_leader_epoch for _, header in iter_headers(found.records)]

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while not condition():
            assert time.monotonic() < deadline, self.node.log[-3000:]
            time.sleep(0.05)

    def key(self, topic: str, partition: int | None = None) -> ItemKey:
        """Return the key of the topic's item, or of a partition's."""
        if partition is None:
            return records.topic_key(topic)

        async def find(store: SqliteMetadataStore) -> ItemKey:
            image = await ClusterView(store).refresh()
            return records.partition_key(image.topics[topic].topic_id, partition)

        return self._with_store(find)

    def overwrite(self, key: ItemKey, body: Body) -> Body:
        """Write over the item, as a program may of which we know nothing; return what it was."""

        async def write(store: SqliteMetadataStore) -> Body:
            item = await store.get(key)
            assert item is not None
            await store.commit([Write(key, body, ANY_VERSION)])
            return item.body

        return self._with_store(write)

    def item(self, key: ItemKey) -> Item | None:
        return self._with_store(lambda store: store.get(key))

    def spoil(self, key: ItemKey) -> None:
        """Damage the item where it lies, at the version that it has."""
        overwrite_body(self.path, key)

    def _with_store(self, use: Callable[[SqliteMetadataStore], Awaitable[T]]) -> T:
        async def main() -> T:
            store = SqliteMetadataStore(self.path)
            try:
                return await use(store)
            finally:
                await store.close()

        return asyncio.run(main())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    cluster.node.start()
    cluster.create("spoiled", "sound")
    for topic in ("spoiled", "sound"):
        for partition in (0, 1):
            assert cluster.produce(topic, partition, COUNT) == [ErrorCode.none] * COUNT
    yield cluster
    if cluster.node.process is not None:
        cluster.node.stop()


def test_a_leader_acknowledges_nothing_of_a_partition_that_it_cannot_read(
    cluster: Cluster,
) -> None:
    key = cluster.key("spoiled", 0)
    body = cluster.overwrite(key, {"of": "tomorrow"})
    cluster.wait(lambda: cluster.produce("spoiled", 0) == [NOT_LED])
    # Everything else goes on, changes of the cluster too.
    assert cluster.produce("spoiled", 1) == [ErrorCode.none]
    cluster.create("new")
    assert cluster.produce("new", 0) == [ErrorCode.none]
    assert cluster.produce("spoiled", 0) == [NOT_LED]
    cluster.node.wait_logged(" ERROR ")
    errors = [line for line in cluster.node.log.splitlines() if " ERROR " in line]
    assert len(errors) == 1, errors
    assert key.collection in errors[0]
    assert key.key in errors[0]
    cluster.overwrite(key, body)
    cluster.wait(lambda: cluster.produce("spoiled", 0) == [ErrorCode.none])
    epochs = cluster.epochs("spoiled", 0)
    assert len(epochs) > COUNT
    assert epochs == sorted(epochs)


@pytest.mark.parametrize(
    ("partition", "dies"), [(None, False), (0, True)], ids=["topic", "partition"]
)
def test_a_node_starts_beside_an_item_that_it_cannot_read_and_keeps_its_logs(
    cluster: Cluster, partition: int | None, dies: bool
) -> None:
    key = cluster.key("spoiled", partition)
    before = [len(cluster.epochs("spoiled", p)) for p in (0, 1)]
    if dies:
        cluster.node.kill()
    else:
        cluster.node.stop()
    body = cluster.overwrite(key, {"of": "tomorrow"})
    cluster.node.start()
    assert cluster.produce("sound", 0) == [ErrorCode.none]
    assert cluster.produce("spoiled", 0) != [ErrorCode.none]
    assert (cluster.produce("spoiled", 1) == [ErrorCode.none]) == (partition == 0)
    if partition is None:
        # Clients are told to ask again, not that there is no such topic.
        admin = AdminClient({"bootstrap.servers": cluster.node.address})
        found = admin.list_topics("spoiled", timeout=60).topics["spoiled"]
        assert found.error.name() == "LEADER_NOT_AVAILABLE"
        with pytest.raises(Exception, match="TOPIC_ALREADY_EXISTS"):
            cluster.create("spoiled")
    cluster.node.stop()
    cluster.node.start()
    cluster.node.wait_logged(key.collection)
    cluster.node.wait_logged(key.key)
    cluster.node.wait_logged(" ERROR ")
    cluster.overwrite(key, body)
    cluster.wait(lambda: cluster.produce("spoiled", 0) == [ErrorCode.none])
    cluster.wait(lambda: cluster.produce("spoiled", 1) == [ErrorCode.none])
    epochs = cluster.epochs("spoiled", 0)
    assert len(epochs) > before[0]
    assert len(cluster.epochs("spoiled", 1)) > before[1]
    # It has begun an epoch of its own, as it does at every start.
    assert epochs[before[0] - 1] < epochs[before[0]]


def test_a_log_lost_while_its_partition_cannot_be_read_does_not_start_empty(
    cluster: Cluster,
) -> None:
    """What its tier has is looked for at the start of a node, and nobody knew of it then."""
    cluster.node.stop()
    key = cluster.key("spoiled", 0)
    body = cluster.overwrite(key, {"of": "tomorrow"})
    shutil.rmtree(cluster.node.data_dir / "spoiled-0")
    cluster.node.start()
    cluster.overwrite(key, body)
    cluster.wait(lambda: cluster.produce("spoiled", 0) == [ErrorCode.kafka_storage_error])
    assert cluster.produce("spoiled", 1) == [ErrorCode.none]
    cluster.node.stop()
    cluster.node.start()  # Nothing was tiered, so all of it is lost.
    assert cluster.produce("spoiled", 0) == [ErrorCode.none]


def test_a_node_puts_its_damaged_lease_right(cluster: Cluster) -> None:
    lease = records.broker_lease_key(1)

    def is_whole() -> bool:
        item = cluster.item(lease)
        return item is not None and item.problem is None and "counter" in item.body

    cluster.spoil(lease)
    assert not is_whole()
    cluster.wait(is_whole)
    assert cluster.produce("sound", 0) == [ErrorCode.none]
    cluster.node.stop()
    cluster.overwrite(lease, {"of": "tomorrow"})
    cluster.node.start()
    assert is_whole()
    assert cluster.produce("sound", 0) == [ErrorCode.none]
