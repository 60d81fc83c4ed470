"""Requests about thousands of partitions, and about one that is broken among others."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from kio.schema.offset_for_leader_epoch.v3 import request as epochs
from tidelog_core.wire_messages import build

from tests.support.node_process import NodeProcess
from tests.support.wire_client import WireClient, api_versions_request

PARTITION_COUNT = 1500


def create(node: NodeProcess, topic: str, partition_count: int) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic(topic, partition_count, 1)])[topic].result(30)
    return admin


class Watch:
    """How small requests of someone else fare meanwhile."""

    def __init__(self, node: NodeProcess) -> None:
        self.answer_count = 0
        self.seconds_max = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(node.port,))

    def __enter__(self) -> Watch:
        self._thread.start()
        time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self, port: int) -> None:
        with WireClient(port) as client:
            while not self._is_over.wait(0.002):
                begun = time.monotonic()
                client.call(api_versions_request())
                self.answer_count += 1
                self.seconds_max = max(self.seconds_max, time.monotonic() - begun)


def test_looking_offsets_up_in_many_logs_keeps_nobody_waiting(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "node") as node:
        create(node, "wide", PARTITION_COUNT)
        producer = Producer({"bootstrap.servers": node.address, "linger.ms": 50})
        for partition in range(PARTITION_COUNT):
            producer.produce("wide", b"x", partition=partition)
        assert producer.flush(30) == 0
        node.stop()
        node.start()  # the logs are opened by who asks for them first
        admin = AdminClient({"bootstrap.servers": node.address})
        wanted = {TopicPartition("wide", p): OffsetSpec.latest() for p in range(PARTITION_COUNT)}
        admin.list_topics(timeout=60)
        with Watch(node) as watch:
            before = watch.answer_count
            found = admin.list_offsets(wanted, request_timeout=60)
            assert {future.result(60).offset for future in found.values()} == {1}
            answered_meanwhile = watch.answer_count - before
        # One is answered before the node has read the large request, and one after.
        assert answered_meanwhile > 5


def test_deleting_a_wide_topic_keeps_nobody_waiting(tmp_path: Path) -> None:
    """In one of three attempts: a busy machine makes one wait, too."""
    with NodeProcess(tmp_path / "node") as node:
        shares: list[float] = []
        while len(shares) < 3 and not any(share < 0.7 for share in shares):
            shares.append(share_of_the_longest_wait(node, f"wide-{len(shares)}"))
        assert min(shares) < 0.7, shares


def share_of_the_longest_wait(node: NodeProcess, name: str) -> float:
    """Delete a topic; return the longest answer's part of the time that this took."""
    admin = create(node, name, PARTITION_COUNT)
    wanted = {TopicPartition(name, p): OffsetSpec.latest() for p in range(PARTITION_COUNT)}
    for future in admin.list_offsets(wanted, request_timeout=60).values():
        future.result(60)  # every log is open
    with Watch(node) as watch:
        begun = time.monotonic()
        admin.delete_topics([name])[name].result(60)
        while any(node.data_dir.glob(f"{name}*")):
            assert time.monotonic() < begun + 120
            time.sleep(0.01)
        lasted_seconds = time.monotonic() - begun
    return watch.seconds_max / lasted_seconds


def test_offsets_of_many_partitions_are_found_in_time(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "node") as node:
        create(node, "wide", 6000)
        consumer = Consumer({"bootstrap.servers": node.address, "group.id": "g"})
        partitions = [TopicPartition("wide", p, p) for p in range(6000)]
        consumer.commit(offsets=partitions, asynchronous=False)
        before = node.cpu_seconds()
        committed = consumer.committed(partitions, timeout=30)
        assert [found.offset for found in committed] == list(range(6000))
        assert node.cpu_seconds() - before < 0.5
        consumer.close()


def test_a_log_that_cannot_be_opened_spoils_no_answer_about_others(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "node") as node:
        create(node, "t", 2)
        node.stop()
        shutil.rmtree(tmp_path / "node/t-1", ignore_errors=True)
        (tmp_path / "node/t-1").write_text("not a directory")
        node.start()
        with WireClient(node.port) as client:
            directories: Any = load_request_schema(35, 1)
            (result,) = client.call(directories(topics=None)).results
            (topic,) = result.topics
            assert [partition.partition_index for partition in topic.partitions] == [0]
            wanted = [
                build(epochs.OffsetForLeaderPartition, partition=partition, leader_epoch=0)
                for partition in (0, 1)
            ]
            asked = build(epochs.OffsetForLeaderTopic, topic="t", partitions=tuple(wanted))
            request = build(epochs.OffsetForLeaderEpochRequest, topics=(asked,))
            (answer,) = client.call(request).topics
            codes = [partition.error_code for partition in answer.partitions]
            assert codes == [ErrorCode.none, ErrorCode.kafka_storage_error]
        (tmp_path / "node/t-1").unlink()


def open_logs(node: NodeProcess, topic: str) -> list[str]:
    """Return the segment files of a topic that the node has open, as often as it has them."""
    return [
        path
        for path in node.open_files().values()
        if path.endswith(".log") and f"/{topic}-" in path
    ]


def test_a_node_with_fewer_files_than_partitions_takes_and_gives_every_record(
    tmp_path: Path,
) -> None:
    partition_count, files_max = 40, 16
    node = NodeProcess(tmp_path / "node", config={"log.open.files.max": str(files_max)})
    with node:
        create(node, "wide", partition_count)
        producer = Producer({"bootstrap.servers": node.address, "enable.idempotence": True})
        for partition in range(partition_count):
            producer.produce("wide", b"x", partition=partition)
        assert producer.flush(60) == 0
        consumer = Consumer({"bootstrap.servers": node.address, "group.id": "g"})
        consumer.assign([TopicPartition("wide", p, 0) for p in range(partition_count)])
        seen: set[int] = set()
        deadline = time.monotonic() + 60
        while len(seen) < partition_count and time.monotonic() < deadline:
            found = consumer.consume(partition_count, timeout=1)
            seen |= {message.partition() for message in found if message.error() is None}
        assert seen == set(range(partition_count))
        consumer.close()
        # What an answer or a flush under way still needs comes on top.
        deadline = time.monotonic() + 30
        while len(open_logs(node, "wide")) > files_max and time.monotonic() < deadline:
            time.sleep(0.05)
        assert 0 < len(open_logs(node, "wide")) <= files_max
