"""Consume, transform, produce over three real nodes, of which one after the other is killed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tidelog_core.metadata.coordination.transactions import shard_of_transaction
from tidelog_core.model import TRANSACTION_STATE_TOPIC

from tests.support.replicated_cluster import ReplicatedCluster, replicated_cluster
from tests.support.waiting import eventually

SHARD_COUNT = 4
CONFIG = {
    "offsets.topic.num.partitions": str(SHARD_COUNT),
    "transaction.state.log.num.partitions": str(SHARD_COUNT),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "group.min.session.timeout.ms": "1000",
}
PARTITION_COUNT = 3
SETTLE_SECONDS = 90.0


class Copier:
    """A process that copies ``in`` to ``out`` in transactions."""

    def __init__(self, cluster: ReplicatedCluster, transactional_id: str, log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.node.transactions.exactly_once"),
                    *(cluster.addresses, "in", "out", transactional_id),
                ],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def committed_count(self) -> int:
        """How many transactions it says it has committed."""
        return self.log.read_text(errors="replace").count("committed ")

    def close(self) -> None:
        self._process.communicate(b"end\n", timeout=SETTLE_SECONDS)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


@contextmanager
def copier(cluster: ReplicatedCluster, transactional_id: str, folder: Path) -> Iterator[Copier]:
    process = Copier(cluster, transactional_id, folder / f"copier-{transactional_id}.log")
    try:
        yield process
    finally:
        process.kill()


def committed(cluster: ReplicatedCluster) -> Counter[str]:
    """Return what a consumer sees of ``out``, each value as often as it is there."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.addresses,
            "group.id": "readers",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    found: Counter[str] = Counter()
    try:
        consumer.assign([TopicPartition("out", index, 0) for index in range(PARTITION_COUNT)])
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < 3:
            for message in consumer.consume(1000, timeout=0.2):
                if message.error() is None:
                    found[message.value().decode()] += 1
                    quiet_since = time.monotonic()
    finally:
        consumer.close()
    return found


def feed(cluster: ReplicatedCluster, values: list[str]) -> None:
    made: Producer = cluster.producer()
    for index, value in enumerate(values):
        made.produce("in", value, partition=index % PARTITION_COUNT)
    assert made.flush(60) == 0


@pytest.mark.slow
def test_every_record_is_copied_once_while_coordinators_and_leaders_are_killed(
    tmp_path: Path,
) -> None:
    with replicated_cluster(tmp_path, config=CONFIG) as cluster:
        for topic in ("in", "out"):
            cluster.create(topic, partitions=PARTITION_COUNT, min_insync_replicas="2")
        values = [f"{index:05}" for index in range(3000)]
        feed(cluster, values[:300])
        with copier(cluster, "copier", tmp_path) as process:
            eventually(lambda: process.committed_count > 0, "a transaction is committed")
            shard = shard_of_transaction("copier", SHARD_COUNT)
            for round_index in range(6):
                start = 300 + round_index * 450
                feed(cluster, values[start : start + 450])
                before = process.committed_count
                victim = (
                    cluster.leader(TRANSACTION_STATE_TOPIC, shard)
                    if round_index % 2 == 0
                    else cluster.leader("out", round_index % PARTITION_COUNT)
                )
                cluster.nodes[victim].kill()
                eventually(
                    lambda before=before: process.committed_count > before,  # type: ignore[misc]
                    "transactions go on without the node",
                    SETTLE_SECONDS,
                )
                cluster.nodes[victim].start()
                for topic in ("in", "out"):
                    for index in range(PARTITION_COUNT):
                        cluster.wait_isr(topic, {1, 2, 3}, index)
            expected = Counter(values)
            try:
                eventually(
                    lambda: committed(cluster).total() >= len(values),
                    "everything is copied",
                    SETTLE_SECONDS,
                )
            finally:
                print(process.log.read_text(errors="replace")[-3000:])
            process.close()
        assert committed(cluster) == expected
