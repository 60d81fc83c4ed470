"""The WAL worker of a real node is killed again and again while clients produce."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually

TOPIC, PARTITIONS, COUNT, KILLS = "t", 3, 3_000, 5


def worker_pid(node: NodeProcess) -> int | None:
    """Return the process that listens on the node's ``wal.sock``."""
    children = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()
    for pid in children:
        if b"wal.sock" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return int(pid)
    return None


@pytest.mark.slow
def test_every_record_is_acknowledged_once_and_in_order(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "node")
    with node:
        admin = AdminClient({"bootstrap.servers": node.address})
        new = NewTopic(TOPIC, PARTITIONS, 1, config={"diskless.enable": "true"})
        admin.create_topics([new])[TOPIC].result(60)
        eventually(lambda: worker_pid(node) is not None)
        killed: list[int] = []

        def kill() -> None:
            while len(killed) < KILLS:
                pid = worker_pid(node)
                if pid is not None and pid not in killed:
                    time.sleep(0.3)  # PUTs are in flight then
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                time.sleep(0.05)

        killing = threading.Thread(target=kill)
        acknowledged: list[tuple[int, int, bytes]] = []
        failed: list[object] = []
        producer = Producer(
            {"bootstrap.servers": node.address, "enable.idempotence": True, "linger.ms": 5}
        )

        def on_delivery(error: object, message: object) -> None:
            if error is not None:
                failed.append(error)
                return
            acknowledged.append((message.partition(), message.offset(), message.value()))  # type: ignore[attr-defined]

        killing.start()
        for number in range(COUNT):
            producer.produce(
                TOPIC, b"%d" % number, partition=number % PARTITIONS, on_delivery=on_delivery
            )
            producer.poll(0.001 if killing.is_alive() else 0)
        assert producer.flush(120) == 0
        killing.join()
        assert failed == []
        assert len(acknowledged) == COUNT
        assert len(set(killed)) == KILLS
        consumer = Consumer({"bootstrap.servers": node.address, "group.id": "g"})
        consumer.assign([TopicPartition(TOPIC, n, 0) for n in range(PARTITIONS)])
        found: list[tuple[int, int, bytes]] = []
        while len(found) < COUNT:
            for message in consumer.consume(COUNT - len(found), 10.0):
                assert message.error() is None
                value = message.value()
                assert value is not None
                found.append((message.partition() or 0, message.offset() or 0, value))
        consumer.close()
        assert sorted(found) == sorted(acknowledged)
        for partition in range(PARTITIONS):
            mine = [row for row in sorted(found) if row[0] == partition]
            assert [row[1] for row in mine] == list(range(COUNT // PARTITIONS))
            assert [int(row[2]) for row in mine] == list(range(partition, COUNT, PARTITIONS))
        assert node.log.count("Traceback") == 0
