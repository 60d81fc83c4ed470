"""Measures replication: CPU of all nodes with acks=all, with one replica and with three.

One partition. Raw clients send requests of one batch each, from a single small record to the
largest request, with the clients' default number in flight. Then librdkafka sends with its own
batch size and with the Java producer's, at full speed and at a moderate rate, and one record at a
time, which prevents batching. Each pass has a fixed time. Passes with one replica and with three
take turns, and the median of each counts. The CPU is user and system time of all node processes;
the clients' time is not counted. The nodes' hot path is compiled, as in a wheel.

A ratio of 0.5 means that three replicas have half of the single replica's rate per CPU second.
Three replicas receive, check and write three times, and ``sendfile`` twice. The bare loops of
``limits`` give the ratio of that work alone, which large batches cannot exceed.
"""

from __future__ import annotations

import functools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from bench import limits
from bench.free_memory import touch_free_memory
from bench.raw_producers import RawProducers, build_records
from tests.support.replicated_cluster import ReplicatedCluster, replicated_cluster
from tools.compiled import write_overlay

PASSES = 3  # of each
BATCH_SIZES_BYTES = (100, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 1_000_000)  # the records
CONNECTIONS = 5
IN_FLIGHT = 5  # max.in.flight.requests.per.connection of all clients
WARM_SECONDS = 0.3
RAW_SECONDS = 1.5
CLIENT_SECONDS = 2.0
RECORD_SIZE_BYTES = 1024
MODERATE_RECORDS_PER_SECOND = 5_000
TICK_SECONDS = 0.001  # of the moderate rate
# Batch size and linger as librdkafka and the Java producer 4.x have them by default.
LIBRDKAFKA = {"batch.size": 1_000_000, "linger.ms": 5}
JAVA = {"batch.size": 16_384, "linger.ms": 5}
QUEUED_RECORDS_MAX = 10_000  # of a producer; the records queued at the end are waited for
# The tests' cluster has short times; these are the defaults.
DEFAULTS = {
    "broker.session.timeout.ms": "9000",
    "replica.lag.time.max.ms": "30000",
    "remote.task.interval.ms": "1000",
}
RESULTS = Path(__file__).parent / "results" / "replicated.json"


@dataclass(frozen=True, slots=True)
class Cost:
    """The costs of one request or record, in microseconds."""

    leader_us: float  # of CPU
    others_us: float  # of the other two nodes' CPU; almost 0 with one replica
    elapsed_us: float

    @property
    def cpu_us(self) -> float:
        """The CPU time of all nodes."""
        return self.leader_us + self.others_us


def main() -> None:
    """Measure, print and write."""
    passes: dict[int, list[dict[str, Cost]]] = {1: [], 3: []}
    touch_free_memory()
    with (
        tempfile.TemporaryDirectory() as folder,
        replicated_cluster(
            Path(folder), config=DEFAULTS, environment={"PYTHONPATH": str(write_overlay())}
        ) as cluster,
    ):
        for number in range(PASSES):
            for replicas, found in passes.items():
                found.append(_pass(cluster, f"r{replicas}-{number}", replicas))
    figures = {name: _compare(name, passes) for name in passes[1][0]}
    append = limits.append_gigabytes_per_cpu_second()
    sendfile = limits.sendfile_gigabytes_per_cpu_second()
    bare = round((1 / append) / (3 / append + 2 / sendfile), 3)
    print(f"the bare loops' ratio: {bare}")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({**figures, "bare loops": {"ratio": bare}}, indent=2) + "\n")


def _compare(name: str, passes: Mapping[int, list[dict[str, Cost]]]) -> dict[str, float]:
    """Return the medians of one measurement, and print them."""
    single, three = ([one[name] for one in passes[replicas]] for replicas in (1, 3))
    single_us = _median([cost.cpu_us for cost in single])
    leader_us = _median([cost.leader_us for cost in three])
    others_us = _median([cost.others_us for cost in three])
    found = {
        "one replica: cpu us": single_us,
        "three replicas: leader's cpu us": leader_us,
        "three replicas: followers' cpu us": others_us,
        "one replica: elapsed us": _median([cost.elapsed_us for cost in single]),
        "three replicas: elapsed us": _median([cost.elapsed_us for cost in three]),
        "ratio": round(single_us / (leader_us + others_us), 3),
    }
    print(f"{name}: {json.dumps(found)}", flush=True)
    return found


def _median(values: list[float]) -> float:
    return round(statistics.median(values), 2)


def _pass(cluster: ReplicatedCluster, topic: str, replicas: int) -> dict[str, Cost]:
    cluster.create(topic, replicas=replicas, remote_storage_enable="false")
    found: dict[str, Cost] = {}
    for size_bytes in BATCH_SIZES_BYTES:
        found[f"a request of {size_bytes} bytes"] = _raw(cluster, topic, size_bytes)
    for name, settings in (("librdkafka", LIBRDKAFKA), ("Java", JAVA)):
        queue = {"queue.buffering.max.messages": QUEUED_RECORDS_MAX}
        producers = [cluster.producer(**settings, **queue) for _ in range(CONNECTIONS)]
        for pace, rate in (("full speed", None), ("a moderate rate", MODERATE_RECORDS_PER_SECOND)):
            produce_with(producers, topic, WARM_SECONDS, rate)
            work = functools.partial(produce_with, producers, topic, CLIENT_SECONDS, rate)
            found[f"a record at the defaults of {name}, {pace}"] = _cost(cluster, topic, work)
    found["one record at a time"] = _cost(cluster, topic, lambda: _one_by_one(cluster, topic))
    # The next pass must not write while this one still does.
    admin = AdminClient({"bootstrap.servers": cluster.addresses})
    admin.delete_topics([topic])[topic].result(30)
    return found


def _cost(cluster: ReplicatedCluster, topic: str, work: Callable[[], int]) -> Cost:
    """Return the cost of each operation that ``work`` does and counts."""
    leader_id = cluster.leader(topic)
    before = {node.broker_id: node.cpu_seconds() for node in cluster.running}
    started = time.perf_counter()
    count = work()
    seconds = time.perf_counter() - started
    used = {node.broker_id: node.cpu_seconds() - before[node.broker_id] for node in cluster.running}
    leader = used.pop(leader_id)
    return Cost(leader / count * 1e6, sum(used.values()) / count * 1e6, seconds / count * 1e6)


def _raw(cluster: ReplicatedCluster, topic: str, size_bytes: int) -> Cost:
    address = ("127.0.0.1", cluster.node_leading(topic).port)
    batch = build_records(size_bytes)
    with RawProducers(address, topic, batch, connections=CONNECTIONS, acks=-1) as producers:
        producers.send_for(WARM_SECONDS, in_flight=IN_FLIGHT)
        return _cost(cluster, topic, lambda: producers.send_for(RAW_SECONDS, in_flight=IN_FLIGHT))


def produce_with(
    producers: list[Producer], topic: str, seconds: float, records_per_second: int | None
) -> int:
    """Produce 1 KiB records with all producers in turn, paced or not; return their number."""
    value = random.Random(1).randbytes(RECORD_SIZE_BYTES)
    started = time.perf_counter()
    count = 0
    while (passed := time.perf_counter() - started) < seconds:
        if records_per_second is not None and count >= passed * records_per_second:
            time.sleep(TICK_SECONDS)
            continue
        producer = producers[count % len(producers)]
        try:
            producer.produce(topic, value, partition=0)
        except BufferError:
            producer.poll(TICK_SECONDS)
            continue
        count += 1
    for producer in producers:
        if producer.flush(120):
            raise RuntimeError("not everything was acknowledged")
    return count


def _one_by_one(cluster: ReplicatedCluster, topic: str) -> int:
    producer = cluster.producer(**{"linger.ms": 0})
    ends, count = time.perf_counter() + CLIENT_SECONDS, 0
    while time.perf_counter() < ends:
        producer.produce(topic, b"x" * 100, partition=0)
        if producer.flush(30):
            raise RuntimeError("a record was not acknowledged")
        count += 1
    return count


if __name__ == "__main__":
    main()
