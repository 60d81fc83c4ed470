"""The work that ``tidelog bench`` measures: producing, consuming, and both record by record."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from tidelog_cli.clients import RECORDS_TIMEOUT_MS, client_factory, opened_admin, require_topic
from tidelog_cli.failures import CommandFailed
from tidelog_cli.output import Advance
from tidelog_cli.reaching import opened

if TYPE_CHECKING:
    from tidelog.consumer import Consumer
    from tidelog.options import CompressionName
    from tidelog.producer import Producer
    from tidelog.producing.batch import Delivery
    from tidelog_core.model import TopicPartition

SAMPLES_MAX = 100_000  # of latencies
PERCENTILES = (50, 95, 99)
TOPIC_PREFIX = "tidelog-bench-"
WAIT_MS = 30_000  # for a record that was written


@dataclass(frozen=True, slots=True)
class Load:
    """What to write or read."""

    bootstrap: str
    topic: str | None  # None: one of its own, deleted afterwards
    records: int
    size_bytes: int
    partitions: int
    replication_factor: int | None
    acks: str
    compression: str
    linger_ms: float
    rate: float | None  # records a second; None: as many as possible


@dataclass(slots=True)
class Measured:
    """The result: how much in how long, and the latencies of records."""

    records: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    latencies_s: list[float] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Return the result for JSON; latencies in milliseconds."""
        seconds = max(self.seconds, 1e-9)
        return {
            "records": self.records,
            "seconds": round(self.seconds, 3),
            "records_per_second": round(self.records / seconds),
            "megabytes_per_second": round(self.size_bytes / seconds / 1e6, 3),
            **self._latencies(),
        }

    def _latencies(self) -> dict[str, float]:
        ordered = sorted(self.latencies_s)
        if not ordered:
            return {}
        found = {f"p{p}_ms": ordered[(len(ordered) - 1) * p // 100] for p in PERCENTILES}
        found["max_ms"] = ordered[-1]
        return {name: round(seconds * 1000, 3) for name, seconds in found.items()}


async def measure_produce(load: Load, advance: Advance) -> Measured:
    """Write the records; a latency is the time from a send to its acknowledgement."""
    async with _topic(load) as topic, _producer(load, load.linger_ms) as producer:
        return await _write(producer, topic, load, advance)


async def measure_consume(load: Load, advance: Advance) -> Measured:
    """Read the records of a topic; one of its own is filled first, which is not measured."""
    async with _topic(load) as topic:
        if load.topic is None:
            async with _producer(load, load.linger_ms) as producer:
                await _write(producer, topic, load, _ignore)
        async with _reader(load, topic, "earliest") as (consumer, ends):
            left = min(load.records, sum(ends.values()))
            if left == 0:
                raise CommandFailed(f"topic {topic!r} has no records to read")
            measured, started = Measured(), time.perf_counter()
            while measured.records < left:
                records = await consumer.poll(max_records=5_000, timeout_ms=WAIT_MS)
                if not records:
                    raise CommandFailed(f"no record came within {WAIT_MS / 1000:g} s")
                measured.records += len(records)
                measured.size_bytes += sum(
                    len(one.value or b"") + len(one.key or b"") for one in records
                )
                advance(len(records))
            measured.seconds = time.perf_counter() - started
    return measured


async def measure_end_to_end(load: Load, advance: Advance) -> Measured:
    """Write one record after the other, each when the one before has been read."""
    value = os.urandom(load.size_bytes)
    async with (
        _topic(load) as topic,
        _producer(load, 0) as producer,
        _reader(load, topic, "latest") as (consumer, _),
    ):
        measured, started = Measured(), time.perf_counter()
        for number in range(load.records):
            before = time.perf_counter()
            mark = b"%d" % number
            await (await producer.send(topic, value, key=mark))
            while True:
                records = await consumer.poll(timeout_ms=WAIT_MS)
                if not records:
                    raise CommandFailed(f"a record did not come within {WAIT_MS / 1000:g} s")
                if any(one.key == mark for one in records):
                    break
            measured.latencies_s.append(time.perf_counter() - before)
            measured.records += 1
            measured.size_bytes += load.size_bytes
            advance(1)
        measured.seconds = time.perf_counter() - started
    return measured


async def _write(producer: Producer, topic: str, load: Load, advance: Advance) -> Measured:
    value = os.urandom(load.size_bytes)
    measured, started = Measured(), time.perf_counter()
    every = max(1, load.records // SAMPLES_MAX)
    last: Delivery | None = None
    failures: list[BaseException] = []

    def time_from(sent_at: float) -> Any:
        def note(delivery: Delivery) -> None:
            measured.latencies_s.append(time.perf_counter() - sent_at)
            if (error := delivery.exception()) is not None:
                failures.append(error)

        return note

    for number in range(load.records):
        if load.rate is not None:
            ahead = number / load.rate - (time.perf_counter() - started)
            if ahead > 0:
                await asyncio.sleep(ahead)
        sent_at = time.perf_counter()
        last = await producer.send(topic, value)
        if number % every == 0:
            last.add_done_callback(time_from(sent_at))
            advance(every)
    await producer.flush()
    if last is not None:
        last.result()
    if failures:
        raise failures[0]
    measured.seconds = time.perf_counter() - started
    measured.records, measured.size_bytes = load.records, load.records * load.size_bytes
    return measured


@asynccontextmanager
async def _topic(load: Load) -> AsyncIterator[str]:
    """Give the topic; one that was made for the run is deleted, also after an error."""
    async with opened_admin(load.bootstrap) as admin:
        if load.topic is not None:
            await require_topic(admin, load.topic)
            yield load.topic
            return
        name = f"{TOPIC_PREFIX}{uuid4().hex[:12]}"
        await admin.create_topic(
            name,
            partition_count=load.partitions,
            replication_factor=load.replication_factor or -1,
            configs={"remote.storage.enable": "false"},  # The run deletes it.
        )
        try:
            yield name
        finally:
            await admin.delete_topics([name])


@asynccontextmanager
async def _producer(load: Load, linger_ms: float) -> AsyncIterator[Producer]:
    from tidelog.producer import Producer

    factory = client_factory(load.bootstrap, request_timeout_ms=RECORDS_TIMEOUT_MS)
    producer = factory.make(
        Producer,
        acks=load.acks,
        compression=cast("CompressionName", load.compression),
        linger_ms=linger_ms,
        request_size_bytes_max=max(1024 * 1024, 2 * load.size_bytes),
        buffer_memory_bytes=max(32 * 1024 * 1024, 4 * load.size_bytes),
    )
    async with opened(producer, factory):
        yield producer


@asynccontextmanager
async def _reader(
    load: Load, topic: str, where: str
) -> AsyncIterator[tuple[Consumer, dict[TopicPartition, int]]]:
    """Give a consumer at an end of every partition, and the number of offsets in each."""
    from tidelog.consumer import Consumer
    from tidelog_core.model import TopicPartition

    async with opened_admin(load.bootstrap) as admin:
        described = (await admin.describe_topics([topic]))[topic]
        partitions = [TopicPartition(topic, p.partition) for p in described.partitions]
        starts = await admin.list_offsets(dict.fromkeys(partitions, "earliest"))
        ends = await admin.list_offsets(dict.fromkeys(partitions, "latest"))
    at = starts if where == "earliest" else ends
    factory = client_factory(load.bootstrap, request_timeout_ms=RECORDS_TIMEOUT_MS)
    async with opened(factory.make(Consumer), factory) as consumer:
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, at[partition].offset)
        yield consumer, {p: ends[p].offset - starts[p].offset for p in partitions}


def _ignore(_amount: int) -> None:
    pass
