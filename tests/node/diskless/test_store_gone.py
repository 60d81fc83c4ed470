"""A node acknowledges nothing by a store that is not the cluster's."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.node_process import NodeProcess

TOPIC = "t"
AWAY_S = 2.0  # that a producer waits for an ack that must not come


def worker_pid(node: NodeProcess) -> int | None:
    """Return the process that listens on the node's ``wal.sock``."""
    children = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()
    for pid in children:
        if b"wal.sock" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return int(pid)
    return None


def test_no_record_is_acknowledged_while_the_file_system_of_the_store_is_away(
    tmp_path: Path,
) -> None:
    """Its records would be hidden once it is back. The worker restarts, then the node."""
    objects, unmounted = tmp_path / "store" / "objects", tmp_path / "unmounted"
    node = NodeProcess(tmp_path / "node", object_store=f"file://{objects}")
    acknowledged: list[bytes] = []

    def on_delivery(error: object, message: object) -> None:
        assert error is None
        acknowledged.append(message.value())  # type: ignore[attr-defined]

    with node:
        admin = AdminClient({"bootstrap.servers": node.address})
        new = NewTopic(TOPIC, 1, 1, config={"diskless.enable": "true"})
        admin.create_topics([new])[TOPIC].result(60)
        producer = Producer({"bootstrap.servers": node.address, "enable.idempotence": True})

        def produce(value: bytes) -> None:
            producer.produce(TOPIC, value, on_delivery=on_delivery)

        produce(b"before")
        assert producer.flush(60) == 0
        first = worker_pid(node)
        assert first is not None
        objects.rename(unmounted)
        os.kill(first, signal.SIGKILL)
        produce(b"the worker restarts")
        assert producer.flush(AWAY_S) == 1
        node.wait_logged("object store is not the cluster's, nothing is written to it")
        assert list((tmp_path / "store").iterdir()) == []
        unmounted.rename(objects)
        assert producer.flush(60) == 0
        objects.rename(unmounted)
        node.kill()
        node.start()
        produce(b"the node restarts")
        assert producer.flush(AWAY_S) == 1
        assert list((tmp_path / "store").iterdir()) == []
        unmounted.rename(objects)
        assert producer.flush(120) == 0
        assert acknowledged == [b"before", b"the worker restarts", b"the node restarts"]
        consumer = Consumer({"bootstrap.servers": node.address, "group.id": "g"})
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        found: list[bytes | None] = []
        while len(found) < len(acknowledged):
            found += [one.value() for one in consumer.consume(1, 10.0) if one.error() is None]
        consumer.close()
        assert found == acknowledged
        assert "Traceback" not in node.log
