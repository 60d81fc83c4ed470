"""Measures how fast Python programs get records: as Arrow, as objects, and with other clients.

    python -m bench.arrow

A node has the first core, the reader the second. Topics of one partition have records of 100 and
of 1,000 bytes, uncompressed and with each codec. Ways to read them, in turns, three rounds each:

poll_arrow    ``Consumer.poll_arrow``: Arrow batches
poll          ``Consumer.poll``: a named tuple for each record
confluent     confluent-kafka's ``consume``: an object for each record
aiokafka      ``AIOKafkaConsumer.getmany``
pandas        ``scan_arrow`` from the node, as a ``DataFrame`` with Arrow's types
pandas, objects     the same, with a Python object for each value, as pandas has them by itself
pandas, confluent   the records of ``consume`` as a ``DataFrame`` with the same columns
                    (these three in processes of their own, see ``frame_reading``)
decode        what ``poll_arrow`` does with bytes that have been received
send_table    the way back: a table that is sent, with acks=all
send          ``Producer.send`` in a loop, a call for each record; 100 bytes without a codec

A ``DataFrame`` has memory that a hypervisor has not taken back, unless ``--untouched`` is given.

Figures are records for each second of the reader's CPU time, all threads, so other work on the
machine matters little. The table has medians; the goals are ratios of them. Beside them is what the
machine allows if each byte is received, checked and copied once, and unpacked (``byte_costs``).
Writes bench/results/arrow.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from tidelog import Admin, Consumer, Producer
from tidelog.consuming.arrow_polling import take_arrow
from tidelog.consuming.fetched import Chunk
from tidelog.consuming.positions import Positions
from tidelog.options import COMPRESSION
from tidelog_core.model import TopicPartition
from tidelog_core.records.batch import Record, build_batch

from bench.byte_costs import ByteCosts, byte_costs
from bench.frame_reading import FETCH_BYTES, WAYS, consumed, frame_rate
from bench.free_memory import touch_free_memory
from bench.process import Node, running_node

SIZES = (100, 1_000)  # bytes of a value
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# So many that the start of a client, some hundredths of a second, matters little.
RECORD_COUNTS = {100: 2_000_000, 1_000: 600_000}
SLOW_COUNTS = {100: 400_000, 1_000: 200_000}  # for clients that make objects
SEND_COUNT = 200_000
ROUNDS = 3
LOG_BYTES = 4 * 1024 * 1024  # of what is decoded at once
BATCH_BYTES = 64 * 1024
DECODE_REPEATS = 20
SEND_SECONDS = 2.5e-6  # wanted
WANTED = {"none": 5e6, "lz4": 3e6}  # records a second
RESULTS = Path(__file__).parent / "results" / "arrow.json"

Reader = Callable[[Node, str, int], None]


def main() -> None:
    """Measure and print."""
    arguments = _parser().parse_args()
    touch_free_memory()
    cores = sorted(os.sched_getaffinity(0))
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-arrow-") as folder:
        objects = Path(folder) / "objects"
        with running_node(
            Path(folder) / "node",
            f"--object-store=file://{objects}",
            is_compiled=not arguments.from_source,
        ) as node:
            for process in (psutil.Process(node.pid), *psutil.Process(node.pid).children(True)):
                process.cpu_affinity(cores[:1])
            os.sched_setaffinity(0, cores[-1:])
            costs = byte_costs(_values(1_000))
            print(_shown_costs(costs), flush=True)
            for size in SIZES:
                for codec in arguments.codecs:
                    figures[f"{size} B, {codec}"] = _case(
                        node, size, codec, is_untouched=arguments.untouched
                    )
                    print(f"{size} B, {codec}: {_shown(figures[f'{size} B, {codec}'])}", flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")
    _print_goals(figures, costs)


def _case(node: Node, size: int, codec: str, *, is_untouched: bool) -> dict[str, float]:
    topic = f"t-{size}-{codec}"
    count = RECORD_COUNTS[size]
    with Admin(node.bootstrap).sync() as admin:
        admin.create_topic(topic, partition_count=1)
    table = _table(size, count)
    rates: dict[str, list[float]] = {}

    def timed(name: str, records: int, act: Callable[[], None]) -> None:
        began = time.process_time()
        act()
        rates.setdefault(name, []).append(records / (time.process_time() - began))

    if size == SIZES[0] and codec == "none":
        for _ in range(ROUNDS):
            timed("send", SEND_COUNT, lambda: asyncio.run(_sent_singly(node, size)))
    with Producer(node.bootstrap, compression=codec).sync() as producer:  # type: ignore[arg-type]
        producer.send_table(topic, table.slice(0, 1000))
        timed("send_table", count, lambda: _sent(producer, topic, table))
    _poll_arrow(node, topic, 1000)  # It compiles, or loads what is compiled.
    for _ in range(ROUNDS):
        for name, reader in READERS.items():
            records = count if name in FAST else SLOW_COUNTS[size]
            timed(name, records, lambda: reader(node, topic, records))  # noqa: B023
        for way in WAYS:
            records = count if way in FAST else SLOW_COUNTS[size]
            rate = frame_rate(way, node.bootstrap, topic, records, is_untouched=is_untouched)
            rates.setdefault(way, []).append(rate)
        rates.setdefault("decode", []).append(_decode_rate(size, codec))
    with Admin(node.bootstrap).sync() as admin:
        admin.delete_topics([topic])
    return {name: statistics.median(each) for name, each in rates.items()}


def _table(size: int, count: int) -> pa.Table:
    return pa.table({"value": pa.array(_values(size) * (count // 1000), pa.binary())})


def _values(size: int) -> list[bytes]:
    """Return a thousand values that compress to about half: random bytes and zeros."""
    noise = np.random.default_rng(1).integers(0, 256, (1000, size), np.uint8)
    noise[:, size // 2 :] = 0
    return [row.tobytes() for row in noise]


def _sent(producer: object, topic: str, table: pa.Table) -> None:
    assert producer.send_table(topic, table) == table.num_rows  # type: ignore[attr-defined]


async def _sent_singly(node: Node, size: int) -> None:
    values = _values(size)
    async with Producer(node.bootstrap) as producer:
        for number in range(SEND_COUNT):
            await producer.send("sent-singly", values[number % 1000])
        await producer.flush()


def _decode_rate(size: int, codec: str) -> float:
    """Return the records a second that are decoded of batches as a producer makes them."""
    values, rows = _values(size), BATCH_BYTES // size
    log = bytearray()
    count = 0
    while len(log) < LOG_BYTES:
        records = [
            Record(0, 1_000, None, values[(count + row) % len(values)], ()) for row in range(rows)
        ]
        log += build_batch(records, base_offset=count, compression=COMPRESSION[codec])
        count += rows
    memory = memoryview(bytearray(len(log)))
    partition = TopicPartition("decoded", 0)
    spent = 0.0
    for repeat in range(DECODE_REPEATS + 1):
        memory[:] = log
        positions = Positions()
        positions.replace([partition])
        state = positions.state(partition)
        state.jump(0)
        began = time.process_time()
        state.chunks.append(Chunk(partition, memory))
        found, _ = take_arrow(positions, include_headers=False, size_bytes_max=1 << 40)
        if repeat:
            spent += time.process_time() - began
        assert sum(batch.num_rows for batch in found) == count
    return DECODE_REPEATS * count / spent


def _poll_arrow(node: Node, topic: str, count: int) -> None:
    asyncio.run(_polled(node, topic, count, is_arrow=True))


def _poll(node: Node, topic: str, count: int) -> None:
    asyncio.run(_polled(node, topic, count, is_arrow=False))


async def _polled(node: Node, topic: str, count: int, *, is_arrow: bool) -> None:
    async with Consumer(
        node.bootstrap,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=FETCH_BYTES,
        max_poll_records=10_000,
    ) as consumer:
        consumer.assign([(topic, 0)])
        left = count
        while left > 0:
            if is_arrow:
                left -= sum(batch.num_rows for batch in await consumer.poll_arrow())
            else:
                left -= len(await consumer.poll())


def _confluent(node: Node, topic: str, count: int) -> None:
    for _ in consumed(node.bootstrap, topic, count):
        pass


def _aiokafka(node: Node, topic: str, count: int) -> None:
    async def read() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=node.bootstrap,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=FETCH_BYTES,
        )
        await consumer.start()
        try:
            consumer.assign([AioPartition(topic, 0)])
            left = count
            while left > 0:
                found = await consumer.getmany(timeout_ms=1000, max_records=10_000)
                left -= sum(map(len, found.values()))
        finally:
            await consumer.stop()

    asyncio.run(read())


READERS: dict[str, Reader] = {
    "poll_arrow": _poll_arrow,
    "poll": _poll,
    "confluent": _confluent,
    "aiokafka": _aiokafka,
}
FAST = {"poll_arrow", "pandas"}


def _shown(rates: dict[str, float]) -> str:
    return (
        ", ".join(f"{name} {rate / 1e6:.2f}" for name, rate in rates.items())
        + " million per CPU second"
    )


def _shown_costs(costs: ByteCosts) -> str:
    rates = {
        "receive": costs.receive,
        "receive and keep": costs.receive_kept,
        "copy": costs.copy,
        "crc32c": costs.crc32c,
        **costs.unpack,
    }
    return "GB per CPU second: " + ", ".join(
        f"{name} {rate / 1e9:.1f}" for name, rate in rates.items()
    )


def _print_goals(figures: dict[str, dict[str, float]], costs: ByteCosts) -> None:
    for case, rates in figures.items():
        size, codec = case.split(" B, ")
        ceiling = costs.ceiling(int(size), codec)
        wanted = f", {WANTED[codec] / 1e6:g} wanted" if codec in WANTED else ""
        print(
            f"{case}: poll_arrow {rates['poll_arrow'] / 1e6:.2f} million, the machine allows"
            f" {ceiling / 1e6:.2f} ({rates['poll_arrow'] / ceiling:.0%}){wanted}"
        )
        by_record = rates["poll_arrow"] / rates["confluent"]
        by_frame = rates["pandas"] / rates["pandas, confluent"]
        frames = costs.ceiling(int(size), codec, is_kept=True) / rates["pandas, confluent"]
        objects = rates["pandas, objects"] / rates["pandas, confluent"]
        own = rates["poll"] / rates["aiokafka"]
        print(
            f"{case}: poll_arrow over confluent {by_record:.1f} (4 wanted), pandas {by_frame:.1f}"
            f" (10 wanted, the machine allows {frames:.1f}; {objects:.1f} as objects),"
            f" poll over aiokafka {own:.2f} (1 wanted)"
        )
        if "send" in rates:
            print(f"send: {1e6 / rates['send']:.2f} µs a record ({SEND_SECONDS * 1e6} wanted)")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.arrow", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--codecs", nargs="*", default=CODECS, choices=CODECS)
    parser.add_argument(
        "--untouched", action="store_true", help="memory for a DataFrame is as the system has it"
    )
    parser.add_argument("--from-source", action="store_true", help="the node is not compiled")
    return parser


if __name__ == "__main__":
    main()
