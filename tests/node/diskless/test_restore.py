"""Every node and the metadata store are lost: the bucket has every acknowledged record."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore

from tests.support.batches import batch_of
from tests.support.command import called
from tests.support.node_process import NodeProcess
from tests.support.outside_stores import node_with_outside_stores
from tests.support.wire_client import WireClient

pytestmark = pytest.mark.slow  # ``tests/cli/storage/test_restore_chains.py`` has the small twins
TOPIC = "t"
PRODUCER = 7_000
DEADLINE_SECONDS = 120.0
CONFIGS = {"diskless.enable": "true", "segment.bytes": "20000", "local.retention.ms": "-2"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    config = {
        "transaction.state.log.num.partitions": "2",
        "offsets.topic.num.partitions": "2",
        "log.retention.check.interval.ms": "1000",  # by then the bucket has a new log start
    }
    with node_with_outside_stores(tmp_path, config) as process:
        yield process


def send(client: WireClient, number: int, *, producer: int = PRODUCER) -> int:
    """Send the idempotent producer's batch with this number; return its base offset."""
    batch = batch_of(b"value %d" % number * 50, producer=(producer, 0, number))
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (answer := client.produce(TOPIC, batch, acks=-1)).error_code is not ErrorCode.none:
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)
    return int(answer.base_offset)


def values(node: NodeProcess, count: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": node.address,
            "group.id": "readers",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    try:
        while len(found) < count and time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append(message.value())
    finally:
        consumer.close()
    return found


def commit_transaction(node: NodeProcess) -> None:
    producer = Producer({"bootstrap.servers": node.address, "transactional.id": "tx"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(TOPIC, b"in a transaction")
    producer.commit_transaction(30)


def lose_everything(node: NodeProcess, folder: Path) -> None:
    """Kill the node, and delete its disk and the metadata store."""
    node.kill()
    node.data_dir.rename(node.data_dir.with_name("lost"))  # its workers may still be ending
    for path in folder.glob("metadata.db*"):
        path.unlink()


@pytest.mark.parametrize("count", [30, 200], ids=["untiered", "tiered"])
def test_all_nodes_and_the_metadata_store_are_lost(
    node: NodeProcess, tmp_path: Path, count: int
) -> None:
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=CONFIGS)])[TOPIC].result(60)
    with WireClient(node.port) as client:
        offsets = [send(client, number) for number in range(count)]
    commit_transaction(node)
    assert offsets == list(range(count))
    wanted = [*(b"value %d" % number * 50 for number in range(count)), b"in a transaction"]
    objects = tmp_path / "objects"
    deadline = time.monotonic() + DEADLINE_SECONDS
    while count > 100 and not list(objects.glob("*/t-*/0/*.index")):
        assert time.monotonic() < deadline, node.log[-3000:]
        time.sleep(0.1)
    lose_everything(node, tmp_path)
    restored = called(
        "restore", "--from", f"file://{objects}", "--metadata", node.metadata_store, "--json"
    ).document
    assert (restored["ok"], restored["problems"]) == (True, [])
    (partition,) = restored["topics"][0]["partitions"]
    assert partition["chain_end"] == count + 2  # the record in the transaction, and its end
    assert (partition["tiered_end"] is None) == (count < 100)
    shutil.rmtree(tmp_path / "lost", ignore_errors=True)
    node.start()
    # What was acknowledged and is sent again is known, with its old offset.
    with WireClient(node.port) as client:
        for number in (count - 1, count - 3, count - 2):
            assert send(client, number) == offsets[number]
        assert send(client, count) == count + 2
    wanted.append(b"value %d" % count * 50)
    assert values(node, len(wanted)) == wanted
    assert settings(tmp_path)["diskless.enable"] == "true"


def test_a_purged_record_that_is_sent_again_is_known_after_all_was_lost(
    node: NodeProcess, tmp_path: Path
) -> None:
    """It was deleted before it was tiered: the chains alone say who has written it."""
    each, producers = 5, (PRODUCER, PRODUCER + 1)
    count = each * len(producers)
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=CONFIGS)])[TOPIC].result(60)
    for first, producer in zip(range(0, count, each), producers, strict=True):
        with WireClient(node.port) as client:
            found = [send(client, number, producer=producer) for number in range(each)]
        assert found == list(range(first, first + each))
        node.kill()  # The next leader epoch is in another chain.
        node.start()
    with WireClient(node.port) as client:
        assert send(client, each - 1) == each - 1  # It leads.
    end = TopicPartition(TOPIC, 0, count)
    admin = AdminClient({"bootstrap.servers": node.address})
    for future in admin.delete_records([end]).values():
        assert future.result(60).low_watermark == count
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not list((tmp_path / "objects").glob(f"*/t-*/0/log-start-*{count}.json")):
        assert time.monotonic() < deadline, node.log[-3000:]
        time.sleep(0.1)
    lose_everything(node, tmp_path)
    restored = called(
        "restore",
        "--from",
        f"file://{tmp_path}/objects",
        "--metadata",
        node.metadata_store,
        "--json",
    ).document
    assert (restored["ok"], restored["problems"]) == (True, [])
    shutil.rmtree(tmp_path / "lost", ignore_errors=True)
    node.start()
    with WireClient(node.port) as client:
        for first, producer in zip(range(0, count, each), producers, strict=True):
            assert send(client, each - 1, producer=producer) == first + each - 1
        assert send(client, each) == count


def settings(folder: Path) -> dict[str, str]:
    async def read() -> dict[str, str]:
        store = SqliteMetadataStore(folder / "metadata.db")
        try:
            return dict((await ClusterView(store).refresh()).topics[TOPIC].configs)
        finally:
            await store.close()

    return asyncio.run(read())
