"""A stream reads diskless partitions from the bucket while nodes are killed and take over."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.spark.micro_batches import MicroBatches
from tests.support.node_process import NodeProcess

# ``test_chain_tail`` has the small twins. Nodes start slowly on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TOPIC = "t"
PARTITIONS = 4
KILLS = 5


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[NodeProcess]]:
    """Three nodes of one cluster."""
    made = [
        NodeProcess(
            tmp_path / f"node-{broker_id}",
            broker_id=broker_id,
            metadata_store=f"sqlite://{tmp_path}/metadata.db",
            object_store=f"file://{tmp_path}/objects",
            config={
                "broker.session.timeout.ms": "2000",
                "broker.heartbeat.interval.ms": "500",
                "metadata.poll.interval.ms": "50",
                "offsets.topic.num.partitions": "2",
                "remote.task.interval.ms": "100",
                "log.retention.check.interval.ms": "200",
            },
        )
        for broker_id in (1, 2, 3)
    ]
    for node in made:
        node.start()
    yield made
    for node in made:
        if node.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(node.pid, signal.SIGCONT)
            node.stop()


class Sending:
    """An idempotent producer in the background, and what it had acknowledged."""

    def __init__(self, servers: str) -> None:
        self.acked: dict[int, dict[int, bytes]] = defaultdict(dict)  # partition → offset → value
        self.failures: list[str] = []
        self._ends = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "batch.size": 50_000,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "reconnect.backoff.max.ms": 200,
                "message.timeout.ms": 120_000,
                "request.timeout.ms": 3_000,
            }
        )
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def stop(self) -> None:
        """End, once everything is acknowledged."""
        self._ends.set()
        self._thread.join()

    def count(self) -> int:
        return sum(map(len, self.acked.values()))

    def _send(self) -> None:
        number = 0
        while not self._ends.is_set():
            for partition in range(PARTITIONS):
                value = b"%d-%d-" % (partition, number) + b"x" * 200
                self._producer.produce(TOPIC, value, partition=partition, on_delivery=self._on)
            number += 1
            self._producer.poll(0)
            time.sleep(0.005)
        if self._producer.flush(120):
            self.failures.append("not everything was acknowledged")

    def _on(self, error, message) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.acked[message.partition()][message.offset()] = message.value()


def log_of(servers: str, partition: int, end: int) -> dict[int, bytes]:
    """Return the partition as a consumer of the nodes sees it."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "fetch.wait.max.ms": 50})
    consumer.assign([TopicPartition(TOPIC, partition, 0)])
    found: dict[int, bytes] = {}
    deadline = time.monotonic() + 60
    while len(found) < end and time.monotonic() < deadline:
        for message in consumer.consume(500, timeout=1.0):
            assert message.error() is None
            found[message.offset()] = message.value()
    consumer.close()
    return found


def test_a_stream_reads_on_from_chain_to_chain_while_leaders_are_killed(
    nodes: list[NodeProcess], tmp_path: Path
) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}")
    draw = random.Random(seed)
    servers = ",".join(node.address for node in nodes)
    config = {"diskless.enable": "true", "segment.bytes": "1000000", "local.retention.ms": "-2"}
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config=config)])[TOPIC].result(30)
    stores = {
        "metadata": f"sqlite://{tmp_path}/metadata.db",
        "objects": f"file://{tmp_path}/objects",
    }
    stream = MicroBatches({**stores, "subscribe": TOPIC, "startingOffsets": "earliest"})
    seen: dict[int, dict[int, bytes | None]] = defaultdict(dict)

    def look() -> None:
        for (_, partition), rows in (stream.next_rows() or {}).items():
            offsets = [offset for offset, _ in rows]
            first = len(seen[partition])
            assert offsets == list(range(first, first + len(rows))), "no gap, nothing twice"
            seen[partition].update(rows)

    sending = Sending(servers)
    try:
        for _ in range(KILLS):
            until = time.monotonic() + draw.uniform(0.5, 2.5)
            while time.monotonic() < until:
                before = {p: set(acked.copy()) for p, acked in sending.acked.copy().items()}
                look()
                for partition, offsets in before.items():
                    assert offsets <= seen[partition].keys(), "acknowledged and not seen"
            node = draw.choice(nodes)
            if draw.random() < 0.7:
                node.kill()
                look()
                node.start()
            else:
                os.kill(node.pid, signal.SIGSTOP)
                until = time.monotonic() + draw.uniform(1.0, 4.0)
                while time.monotonic() < until:
                    look()
                os.kill(node.pid, signal.SIGCONT)
    finally:
        sending.stop()
    assert sending.failures[:3] == []
    look()
    stream.stop()
    assert sending.count() > 100
    for partition in range(PARTITIONS):
        assert sending.acked[partition].items() <= seen[partition].items()
        assert log_of(servers, partition, len(seen[partition])) == seen[partition]
