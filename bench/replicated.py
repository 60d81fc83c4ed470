"""What replication costs: node CPU per gigabyte produced with acks=all, one replica and three.

1 KB records, one partition, one librdkafka producer; user and system time of all node
processes. Passes with one replica and with three take turns, and the median of each counts.

Three replicas are three times receive, check and write, and two times ``sendfile``. What
that comes to in the bare loops of ``limits`` says how near to the single replica's rate per
CPU second three could come if nothing else cost anything.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient

from bench import limits
from tests.node.replication.replicated_cluster import ReplicatedCluster, replicated_cluster

RECORD_SIZE_BYTES = 1024
RECORD_COUNT = 300_000
WARM_COUNT = 20_000
SMALL_COUNT = 1_000
PASSES = 3  # of each
# The cluster of the tests has short times; these are the defaults.
DEFAULTS = {
    "broker.session.timeout.ms": "9000",
    "replica.lag.time.max.ms": "30000",
    "remote.task.interval.ms": "1000",
}
RESULTS = Path(__file__).parent / "results" / "replicated.json"


def main() -> None:
    """Measure and print."""
    passes: dict[int, list[dict[str, float]]] = {1: [], 3: []}
    with (
        tempfile.TemporaryDirectory() as folder,
        replicated_cluster(Path(folder), config=DEFAULTS) as cluster,
    ):
        for number in range(PASSES):
            for replicas, found in passes.items():
                found.append(_pass(cluster, f"r{replicas}-{number}", replicas))
                print(f"replicas {replicas}: {json.dumps(found[-1])}", flush=True)
    figures: dict[str, float] = {}
    for replicas, found in passes.items():
        for name in found[0]:
            median = statistics.median(one[name] for one in found)
            figures[f"r{replicas}: {name}"] = round(median, 3)
    name = "GB per node CPU second"
    figures["ratio"] = round(figures[f"r3: {name}"] / figures[f"r1: {name}"], 3)
    append = limits.append_gigabytes_per_cpu_second()
    sendfile = limits.sendfile_gigabytes_per_cpu_second()
    figures["ratio of the bare loops"] = round((1 / append) / (3 / append + 2 / sendfile), 3)
    print(json.dumps(figures, indent=2))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")


def _pass(cluster: ReplicatedCluster, topic: str, replicas: int) -> dict[str, float]:
    cluster.create(topic, replicas=replicas, remote_storage_enable="false")
    _produce(cluster, topic, WARM_COUNT)
    cpu, seconds = _produce(cluster, topic, RECORD_COUNT)
    gigabytes = RECORD_COUNT * RECORD_SIZE_BYTES / 1e9
    before, started = _cpu(cluster), time.perf_counter()
    _one_by_one(cluster, topic)
    small_seconds, small_cpu = time.perf_counter() - started, _cpu(cluster) - before
    # The next pass is not to write behind this one's back.
    admin = AdminClient({"bootstrap.servers": cluster.addresses})
    admin.delete_topics([topic])[topic].result(30)
    return {
        "GB per node CPU second": round(gigabytes / cpu, 3),
        "GB per second": round(gigabytes / seconds, 3),
        "ms per acked request": round(small_seconds / SMALL_COUNT * 1e3, 3),
        "node CPU us per acked request": round(small_cpu / SMALL_COUNT * 1e6, 1),
    }


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
