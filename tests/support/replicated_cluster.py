"""Three real nodes that share a metadata store and a bucket, and requests to them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tools.ports import free_port

SETTLE_SECONDS_MAX = 40.0
LEASE_MS = 2_000
LAG_MS = 1_500
MEMORY_DIR = Path("/dev/shm")

CONFIG = {
    "broker.session.timeout.ms": str(LEASE_MS),
    "replica.lag.time.max.ms": str(LAG_MS),
    "remote.task.interval.ms": "100",
}


class ReplicatedCluster:
    """Nodes 1 to 3. Made by ``replicated_cluster``."""

    def __init__(
        self,
        folder: Path,
        *,
        config: Mapping[str, str] | None = None,
        racks: bool = False,
        has_http: bool = False,
        environment: Mapping[str, str] | None = None,
        metadata_store: str,
        object_store: str | None = None,
    ) -> None:
        self.nodes = {
            broker_id: NodeProcess(
                folder / f"node{broker_id}",
                broker_id=broker_id,
                metadata_store=metadata_store,
                object_store=object_store or f"file://{folder}/objects",
                config={**CONFIG, **(config or {})},
                environment=environment,
                arguments=(
                    *(("--rack", f"rack{broker_id}") if racks else ()),
                    *(
                        ("--http-port", str(free_port())) if has_http else ()
                    ),  # kept when it restarts
                ),
            )
            for broker_id in (1, 2, 3)
        }

    @property
    def addresses(self) -> str:
        """Where clients begin."""
        return ",".join(node.address for node in self.nodes.values())

    @property
    def running(self) -> list[NodeProcess]:
        """The nodes with a process."""
        return [node for node in self.nodes.values() if node.process is not None]

    def create(self, topic: str, *, partitions: int = 1, replicas: int = 3, **config: str) -> None:
        """Create a topic, and wait until it is led; config names have underscores for dots."""
        dotted = {name.replace("_", "."): value for name, value in config.items()}
        admin = AdminClient({"bootstrap.servers": self.addresses})
        new = NewTopic(topic, partitions, replicas, config=dotted)
        admin.create_topics([new])[topic].result(60)
        eventually(lambda: self.isr(topic) == {1, 2, 3} or replicas < 3, "the topic is known")
        # A new diskless partition has none before that has a chain; every node has to know of it.
        eventually(
            lambda: all(
                self.leader(topic, index, by=node) >= 0
                for node in self.running
                for index in range(partitions)
            ),
            "the topic is led",
        )

    def alter(self, topic: str, **config: str) -> None:
        """Change the topic's settings; their names have underscores for dots."""
        changes = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=changes)
        admin = AdminClient({"bootstrap.servers": self.addresses})
        admin.incremental_alter_configs([resource])[resource].result(60)

    def described(self, topic: str, partition: int = 0, *, by: NodeProcess | None = None) -> Any:
        """Return the partition's metadata as one of the running nodes has it."""
        admin = AdminClient({"bootstrap.servers": (by or self.running[0]).address})
        found = admin.list_topics(topic, timeout=60).topics[topic].partitions
        return found.get(partition)

    def leader(self, topic: str, partition: int = 0, *, by: NodeProcess | None = None) -> int:
        """Return the leader, -1 for none."""
        found = self.described(topic, partition, by=by)
        return -1 if found is None else int(found.leader)

    def isr(self, topic: str, partition: int = 0) -> set[int]:
        """Return the replicas in sync."""
        found = self.described(topic, partition)
        return set() if found is None else set(found.isrs)

    def node_leading(self, topic: str) -> NodeProcess:
        """Return the leader's process."""
        return self.nodes[self.leader(topic)]

    def followers(self, topic: str) -> list[NodeProcess]:
        """Return the running nodes that do not lead the topic's first partition."""
        leader = self.leader(topic)
        return [node for node in self.running if node.broker_id != leader]

    def producer(self, **config: Any) -> Producer:
        """Return an idempotent producer with acks=all."""
        return Producer(
            {
                "bootstrap.servers": self.addresses,
                "acks": "all",
                "linger.ms": 1,
                "batch.size": 4_000,
                "enable.idempotence": True,
                "retry.backoff.max.ms": 200,
                "reconnect.backoff.max.ms": 300,
                **config,
            }
        )

    def produce(self, topic: str, values: Iterable[bytes], **config: Any) -> dict[int, bytes]:
        """Produce, and return the acknowledged records by offset."""
        producer = self.producer(**config)
        acked: dict[int, bytes] = {}

        def delivered(error: object, message: Any) -> None:
            if error is None:
                acked[message.offset()] = message.value()

        for value in values:
            producer.produce(topic, value, partition=0, on_delivery=delivered)
            producer.poll(0)
        producer.flush(30)
        return acked

    def consume(
        self, topic: str, count: int, *, offset: int = 0, address: str | None = None, **config: Any
    ) -> dict[int, bytes]:
        """Return ``count`` records from ``offset`` on."""
        consumer = Consumer(
            {
                "bootstrap.servers": address or self.addresses,
                "group.id": "readers",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                **config,
            }
        )
        consumer.assign([TopicPartition(topic, 0, offset)])
        found: dict[int, bytes] = {}
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        try:
            while len(found) < count:
                assert time.monotonic() < deadline, f"only {len(found)} of {count} records came"
                for message in consumer.consume(count - len(found), timeout=1):
                    if message.error() is None:
                        assert message.offset() not in found
                        found[message.offset()] = message.value()
        finally:
            consumer.close()
        return found

    def log_bytes(self, broker_id: int, topic: str, partition: int = 0) -> bytes:
        """Return the bytes of all segments of a node's local log of the partition."""
        directory = self.nodes[broker_id].data_dir / f"{topic}-{partition}"
        return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))

    def wait_same_logs(self, topic: str, partition: int = 0) -> bytes:
        """Wait until all running nodes' local logs hold the same bytes, and return them."""
        ids = [node.broker_id for node in self.running]
        eventually(
            lambda: len({self.log_bytes(b, topic, partition) for b in ids}) == 1,
            f"the logs of {topic} are the same",
        )
        return self.log_bytes(ids[0], topic, partition)

    def wait_isr(self, topic: str, expected: set[int], partition: int = 0) -> None:
        """Wait until exactly these replicas are in sync."""
        eventually(lambda: self.isr(topic, partition) == expected, f"the ISR is {expected}")

    def wait_leader(self, topic: str, *, other_than: int = -1) -> int:
        """Wait until a running node other than this one leads, and return it."""
        ids = {node.broker_id for node in self.running} - {other_than}
        found = -1

        def is_led() -> bool:
            nonlocal found
            found = self.leader(topic)
            return found in ids

        eventually(is_led, f"{topic} has a leader in {ids}")
        return found

    @property
    def logs(self) -> str:
        """The ends of the nodes' own logs."""
        return "\n".join(
            f"--- node {broker_id}\n{node.log[-4000:]}" for broker_id, node in self.nodes.items()
        )


@contextmanager
def replicated_cluster(
    folder: Path, *, metadata_store: str | None = None, **options: Any
) -> Iterator[ReplicatedCluster]:
    """Three running nodes; those that still run at the end are stopped.

    The metadata store is in memory-backed files where the system has them: a lease of two
    seconds must not depend on how long the disk takes to flush the writes of other tests.
    """
    with TemporaryDirectory(dir=MEMORY_DIR if MEMORY_DIR.is_dir() else folder) as quick:
        store = metadata_store or f"sqlite://{quick}/metadata.db"
        with running(ReplicatedCluster(folder, metadata_store=store, **options)) as cluster:
            yield cluster


@contextmanager
def running(cluster: ReplicatedCluster) -> Iterator[ReplicatedCluster]:
    """Run the nodes for the length of the block."""
    try:
        for node in cluster.nodes.values():
            node.spawn()
        for node in cluster.nodes.values():
            node.wait_ready()
        # librdkafka fails the request to a broker that another one does not name yet.
        for node in cluster.nodes.values():
            eventually(partial(_knows_all, node, len(cluster.nodes)), "the nodes know each other")
        yield cluster
    except BaseException:
        print(cluster.logs)
        raise
    finally:
        for node in cluster.running:
            node.kill()


def _knows_all(node: NodeProcess, count: int) -> bool:
    admin = AdminClient({"bootstrap.servers": node.address})
    return len(admin.list_topics(timeout=60).brokers) == count


@contextmanager
def stopped(node: NodeProcess) -> Iterator[None]:
    """Stop the process for the time of the context, as if it were swapped out."""
    os.kill(node.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(node.pid, signal.SIGCONT)
