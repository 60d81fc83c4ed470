"""Measures a node's costs per byte and per request; `make bench` writes bench/results/node.json.

1 KB records, one partition, librdkafka clients. Node CPU is user and system time of the
node's processes from /proc; the clients' time is not counted. The hot path is compiled, as
in a wheel; small requests are also measured uncompiled. The bare loops of ``limits`` run in
the same run on the same machine, so that the ratios can be compared with other machines'. It takes
a minute.
"""

from __future__ import annotations

import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench import limits
from bench.command_line import parser_of
from bench.process import Node, running_node
from bench.small_requests import send_small_requests

RECORD_SIZE_BYTES = 1024
RECORD_COUNT = 2_000_000
FETCH_PASSES = 2
SMALL_REQUEST_COUNT = 100_000
RESULTS = Path(__file__).parent / "results" / "node.json"


def main() -> None:
    """Run every measurement once; print and write the figures."""
    parser_of("node", __doc__).parse_args()
    figures: dict[str, float | int | str] = {
        "cores": os.cpu_count() or 0,
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    with tempfile.TemporaryDirectory() as folder, running_node(Path(folder)) as node:
        figures["first_produce_after_start_s"] = _first_produce(node)
        time.sleep(2)
        figures["idle_rss_mb"] = node.rss_megabytes()
        _create_topic(node, "bulk")
        _create_topic(node, "small")
        figures |= _rate("produce", node, lambda: _produce(node))
        figures |= _rate("fetch", node, lambda: _fetch(node))
        figures |= _small_rates(node, "small_produce")
        figures["loaded_rss_mb"] = node.rss_megabytes()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_node(Path(folder), is_compiled=False) as node,
    ):
        _create_topic(node, "small")
        figures |= _small_rates(node, "interpreted_small_produce")
    figures["bare_sendfile_gb_per_cpu_s"] = limits.sendfile_gigabytes_per_cpu_second()
    figures["bare_append_gb_per_cpu_s"] = limits.append_gigabytes_per_cpu_second()
    figures = {k: round(v, 3) if isinstance(v, float) else v for k, v in figures.items()}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))


def _first_produce(node: Node) -> float:
    producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 0})
    producer.produce("first", b"x")
    if producer.flush(30):
        raise RuntimeError("the first record was not acknowledged")
    return time.perf_counter() - node.started_at


def _create_topic(node: Node, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    topic = NewTopic(name, 1, 1, config={"remote.storage.enable": "false"})
    admin.create_topics([topic])[name].result(30)


def _rate(name: str, node: Node, work: Callable[[], int]) -> dict[str, float | int | str]:
    cpu_before, started = node.cpu_seconds(), time.perf_counter()
    done_bytes = work()
    wall, cpu = time.perf_counter() - started, node.cpu_seconds() - cpu_before
    return {
        f"{name}_gb": done_bytes / 1e9,
        f"{name}_gb_per_cpu_s": done_bytes / cpu / 1e9,
        f"{name}_gb_per_s": done_bytes / wall / 1e9,
    }


def _produce(node: Node) -> int:
    producer = Producer(
        {
            "bootstrap.servers": node.bootstrap,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    failures: list[object] = []
    body = random.Random(1).randbytes(RECORD_SIZE_BYTES)
    for _ in range(RECORD_COUNT):
        while True:
            try:
                producer.produce("bulk", body, on_delivery=lambda e, _: e and failures.append(e))
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    if producer.flush(120) or failures:
        raise RuntimeError(f"not everything was acknowledged: {failures[:3]}")
    return RECORD_COUNT * RECORD_SIZE_BYTES


def _fetch(node: Node) -> int:
    for _ in range(FETCH_PASSES):
        consumer = Consumer(
            {
                "bootstrap.servers": node.bootstrap,
                "group.id": "bench",
                "enable.auto.commit": False,
                "fetch.message.max.bytes": 16_000_000,
                "fetch.max.bytes": 50_000_000,
                "queued.max.messages.kbytes": 1_000_000,
                "check.crcs": False,
            }
        )
        consumer.assign([TopicPartition("bulk", 0, 0)])
        count = 0
        while count < RECORD_COUNT:
            count += len(consumer.consume(10_000, 10))
        consumer.close()
    return FETCH_PASSES * RECORD_COUNT * RECORD_SIZE_BYTES


def _small_rates(node: Node, name: str) -> dict[str, float]:
    return {
        f"{name}_us": _small_requests(node, _send_small_pipelined),
        f"{name}_5_in_flight_us": _small_requests(node, _send_small_few),
    }


def _small_requests(node: Node, send: Callable[[Node, int], None]) -> float:
    send(node, 2000)
    before = node.cpu_seconds()
    send(node, SMALL_REQUEST_COUNT)
    return (node.cpu_seconds() - before) / SMALL_REQUEST_COUNT * 1e6


def _send_small_pipelined(node: Node, count: int) -> None:
    """Send one record per request, with as many in flight as librdkafka allows."""
    producer = Producer(
        {"bootstrap.servers": node.bootstrap, "linger.ms": 0, "batch.num.messages": 1, "acks": 1}
    )
    for _ in range(count):
        while True:
            try:
                producer.produce("small", b"v" * 100)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    if producer.flush(60):
        raise RuntimeError("not everything was acknowledged")


def _send_small_few(node: Node, count: int) -> None:
    send_small_requests(("127.0.0.1", node.port), "small", count)


if __name__ == "__main__":
    main()
