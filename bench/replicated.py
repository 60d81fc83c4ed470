"""What replication costs: node CPU per gigabyte produced with acks=all, one replica and three.

1 KB records, one partition, one librdkafka producer; user and system time of all node
processes. Half the single-node rate per CPU would be the bare cost of a second and third
copy at a third of the price each.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from pathlib import Path

from tests.node.replication.replicated_cluster import ReplicatedCluster, replicated_cluster

RECORD_SIZE_BYTES = 1024
RECORD_COUNT = 500_000
SMALL_COUNT = 3_000
RESULTS = Path(__file__).parent / "results" / "replicated.json"


def main() -> None:
    """Measure and print."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, replicated_cluster(Path(folder)) as cluster:
        for replicas in (1, 3, 1, 3):
            topic = f"r{replicas}-{len(figures)}"
            cluster.create(topic, replicas=replicas, remote_storage_enable="false")
            _produce(cluster, topic, 10_000)
            cpu, seconds = _produce(cluster, topic, RECORD_COUNT)
            gigabytes = RECORD_COUNT * RECORD_SIZE_BYTES / 1e9
            figures[f"{topic}: GB per node CPU second"] = round(gigabytes / cpu, 3)
            figures[f"{topic}: GB per second"] = round(gigabytes / seconds, 3)
            before = _cpu(cluster)
            started = time.perf_counter()
            _one_by_one(cluster, topic)
            figures[f"{topic}: ms per acked request"] = round(
                (time.perf_counter() - started) / SMALL_COUNT * 1e3, 3
            )
            figures[f"{topic}: node CPU us per acked request"] = round(
                (_cpu(cluster) - before) / SMALL_COUNT * 1e6, 1
            )
    print(json.dumps(figures, indent=2))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")


def _cpu(cluster: ReplicatedCluster) -> float:
    return sum(node.cpu_seconds() for node in cluster.running)


def _produce(cluster: ReplicatedCluster, topic: str, count: int) -> tuple[float, float]:
    producer = cluster.producer(
        **{"batch.size": 1_000_000, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
    )
    value = random.Random(1).randbytes(RECORD_SIZE_BYTES)
    before, started = _cpu(cluster), time.perf_counter()
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, value, partition=0)
                break
            except BufferError:
                producer.poll(0.05)
    assert producer.flush(120) == 0
    return _cpu(cluster) - before, time.perf_counter() - started


def _one_by_one(cluster: ReplicatedCluster, topic: str) -> None:
    producer = cluster.producer(**{"linger.ms": 0})
    for _ in range(SMALL_COUNT):
        producer.produce(topic, b"x" * 100, partition=0)
        assert producer.flush(10) == 0


if __name__ == "__main__":
    main()
