"""``tidelog up`` runs the functions too, and it is they who remove what is too old."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tidelog_core.metadata import records
from tidelog_core.metadata.records import Partition, Topic
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore

from tests.support.cluster_process import Cluster, running_cluster
from tests.support.waiting import eventually
from tools.server_process import is_running

SECONDS_MAX = 60.0
CONFIGS = {"retention.ms": "1000", "file.delete.delay.ms": "0", "segment.bytes": "4000"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three nodes, whose own retention is due every five minutes, as they come."""
    with running_cluster(tmp_path / "cluster") as running:
        yield running


def produce(address: str, count: int) -> None:
    """Produce records of last week."""
    producer = Producer({"bootstrap.servers": address, "batch.size": 1500})
    old_ms = int(time.time() * 1000) - 7 * 86_400_000
    for number in range(count):
        producer.produce("t", bytes(1000), str(number).encode(), timestamp=old_ms)
        producer.flush(SECONDS_MAX)


async def stored_log_start(data_dir: Path) -> int:
    store = SqliteMetadataStore(data_dir / "metadata.db")
    try:
        item = await store.get(records.topic_key("t"))
        assert item is not None
        topic = Topic.from_item(item)
        found = await store.get(records.partition_key(topic.topic_id, 0))
        assert found is not None
        return Partition.from_item(found).log_start_offset
    finally:
        await store.close()


def test_old_segments_go_by_events_and_readers_see_it(cluster: Cluster, tmp_path: Path) -> None:
    """Soon after they were copied, and again after the functions' process was killed."""
    assert cluster.line
    eventually(lambda: len(cluster.pids_of("tidelog_functions.local")) == 1)
    (functions_pid,) = cluster.pids_of("tidelog_functions.local")
    admin = AdminClient({"bootstrap.servers": cluster.address})
    admin.create_topics([NewTopic("t", 1, 1, config=CONFIGS)])["t"].result(60)
    produce(cluster.address, 16)
    data_dir = tmp_path / "cluster"
    eventually(lambda: asyncio.run(stored_log_start(data_dir)) > 0)
    start = asyncio.run(stored_log_start(data_dir))
    consumer = Consumer({"bootstrap.servers": cluster.address, "group.id": "g"})
    try:
        partition = TopicPartition("t", 0)
        eventually(lambda: consumer.get_watermark_offsets(partition, 10)[0] >= start)
        os.kill(functions_pid, signal.SIGKILL)
        eventually(lambda: cluster.pids_of("tidelog_functions.local") not in ([], [functions_pid]))
        produce(cluster.address, 16)
        eventually(lambda: consumer.get_watermark_offsets(partition, 10)[0] > 16)
    finally:
        consumer.close()
    first = list((data_dir / "objects").rglob(f"{0:020d}-*"))
    assert first == []
    assert "process ended, it is started again" in cluster.log_path.read_text()
    assert cluster.process.poll() is None
    (functions_pid,) = cluster.pids_of("tidelog_functions.local")
    cluster.process.send_signal(signal.SIGINT)
    assert cluster.process.wait(SECONDS_MAX) == 0
    assert not is_running(functions_pid)
