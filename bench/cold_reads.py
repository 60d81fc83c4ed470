"""Measures reads from the tier and their effects; writes bench/results/cold_reads.json.

A node on SQLite has its objects in MiniStack's S3 on the same machine, and a topic that is only
in the tier. Ranged GETs go through a server (``bench.s3_shape``) that answers at the machine's
speed, at S3's, and at a quarter of S3's, as a machine of four times the speed would see S3. It
measures:

scan    the bytes per second of consumers that read the topic from its start, divided by those of
        raw GETs of the same chunks from the same server. There are as many concurrent GETs as
        the node has for the consumers. Passes of both take turns, the first is dropped, and
        the median of the others counts. A scan finds nothing useful in the cache. The CPU time
        of the node and its worker is measured too.
tail    the latency of a fetch of a record that was just written: without other load, beside the
        raw GETs, and beside one or four consumers that keep reading the topic from the tier. The
        raw GETs show the machine's time for the emulator's own work.

The emulator, the node, its worker and the clients share the machine's cores. At the machine's
speed only CPU time matters. At a quarter of S3's speed it matters little: a slow scan then has too
few concurrent requests.

    python -m bench.cold_reads
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import boto3
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tidelog_core.config import NodeConfig
from tidelog_core.objects.s3 import S3ObjectStore
from tidelog_core.records.batch import iter_headers

from bench import s3_shape
from bench.process import Node, running_node
from bench.s3_shape import Shape, ShapedServer
from tests.support.batches import batch_of
from tests.support.wire_client import WireClient, frame
from tools import ministack

RECORD_SIZE_BYTES = 1024
PARTITION_COUNT = 4
RECORDS_OF_PARTITION = 280_000  # four tiered segments and the active one
SEGMENT_BYTES = 64 << 20
CACHE_BYTES = 512 << 20
FETCH_BYTES = 16 << 20
DEFAULT_FETCH_BYTES = 1 << 20  # max.partition.fetch.bytes of Kafka's consumer
PASSES = 3
TAIL_ROUNDS = 2000
TAIL_PAUSE_S = 0.002
EVICTED_SECONDS_MAX = 300.0
TOPIC, TAIL = "cold", "tail"
BUCKET = "tidelog-bench"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
}
CHUNK_BYTES = NodeConfig().remote_chunk_bytes
# Reading ahead leaves a quarter of the concurrency, as long as no more readers wait than here.
CONCURRENCY = 3 * NodeConfig().remote_fetch_concurrency // 4
RESULTS = Path(__file__).parent / "results" / "cold_reads.json"
_ANSWER = struct.Struct(f">iihiih{len(TOPIC)}si")  # Fetch 11 up to the partitions
_PARTITION = struct.Struct(">ihqqqiii")  # up to the records; nothing is aborted


@dataclass(frozen=True, slots=True)
class Scan:
    """A way to read the whole topic."""

    name: str
    readers: tuple[
        tuple[tuple[int, ...], ...], ...
    ]  # of each reader: the partitions of its scans, in turn
    fetch_bytes: int
    concurrency: int


EVERY = tuple(range(PARTITION_COUNT))
ONE_BY_ONE = tuple((partition,) for partition in EVERY)
SCANS = (
    Scan("one reader, 16 MiB fetches", (ONE_BY_ONE,), FETCH_BYTES, CONCURRENCY),
    Scan("one reader, 1 MiB fetches", (ONE_BY_ONE,), DEFAULT_FETCH_BYTES, CONCURRENCY),
    Scan("one reader of four partitions at once", ((EVERY,),), FETCH_BYTES, CONCURRENCY),
    Scan(
        "four readers, a partition each",
        tuple((one,) for one in ONE_BY_ONE),
        FETCH_BYTES,
        CONCURRENCY,
    ),
)


PACES = (
    ("unshaped", None, SCANS),
    ("at S3's pace", s3_shape.S3, SCANS),
    ("at a quarter of S3's pace", s3_shape.QUARTER, (SCANS[0], SCANS[3])),
)
TAIL_PACES = PACES[:2]
BACKFILLS = (
    SCANS[0],
    # No reader follows another closely enough to find its chunks in the cache.
    Scan(
        "four readers of the whole topic",
        tuple(ONE_BY_ONE[first:] + ONE_BY_ONE[:first] for first in EVERY),
        FETCH_BYTES,
        CONCURRENCY,
    ),
)


class ColdReader:
    """Reads the topic with one fetch at a time, and discards the records."""

    def __init__(self, port: int, fetch_bytes: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 120)
        self._fetch_bytes = fetch_bytes
        self._buffer = memoryview(bytearray(PARTITION_COUNT * FETCH_BYTES + (1 << 20)))

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def scan(self, partitions: Sequence[int], end_offsets: Sequence[int], *, begin: int = 0) -> int:
        """Read all partitions to their ends with each fetch; return the bytes of records."""
        offsets = dict.fromkeys(partitions, begin)
        size_bytes = 0
        while offsets:
            for partition, records in self._fetch(offsets):
                for _, header in iter_headers(records):
                    offsets[partition] = header.next_offset
                size_bytes += len(records)
                if offsets[partition] >= end_offsets[partition]:
                    del offsets[partition]
        return size_bytes

    def _fetch(self, offsets: dict[int, int]) -> Iterator[tuple[int, memoryview]]:
        wanted = b"".join(
            struct.pack(">iiqqi", partition, -1, offset, -1, self._fetch_bytes)
            for partition, offset in offsets.items()
        )
        name = struct.pack(f">ih{len(TOPIC)}s", 1, len(TOPIC), TOPIC.encode())
        limits = struct.pack(">iiiibii", -1, 500, 1, 2**31 - 1, 0, 0, -1)
        body = limits + name + struct.pack(">i", len(offsets)) + wanted + struct.pack(">ih", 0, 0)
        self._socket.sendall(frame(1, 11, 0, body, tags=b""))
        self._receive(self._buffer[:4])
        (size_bytes,) = struct.unpack_from(">i", self._buffer)
        answer = self._buffer[:size_bytes]
        self._receive(answer)
        position = _ANSWER.size
        for _ in range(_ANSWER.unpack_from(answer)[-1]):
            found, error, *_, record_bytes = _PARTITION.unpack_from(answer, position)
            if error:
                raise RuntimeError(f"the node answered error code {error}")
            position += _PARTITION.size
            yield found, answer[position : position + record_bytes]
            position += record_bytes

    def _receive(self, view: memoryview) -> None:
        while view:
            got = self._socket.recv_into(view)
            if not got:
                raise EOFError("closed by the node")
            view = view[got:]


def main() -> None:
    """Measure and print; ``backfill`` and ``gets`` run a load, in a separate process."""
    match sys.argv[1:]:
        case ["backfill", name, port, *end_offsets]:
            [scan] = [scan for scan in BACKFILLS if scan.name == name]
            readers = [ColdReader(int(port), scan.fetch_bytes) for _ in scan.readers]
            while True:
                _scan(scan, readers, [*map(int, end_offsets)])
        case ["gets", endpoint, prefix]:
            os.environ.update(CREDENTIALS)
            raw_gets = RawGets(endpoint, prefix)
            while True:
                raw_gets.run(CONCURRENCY)
    os.environ.update(CREDENTIALS)
    with (
        tempfile.TemporaryDirectory() as folder,
        ministack.serve(Path(folder)) as stand_in,
        s3_shape.serve(Path(folder), stand_in) as server,
    ):
        figures = _measure(Path(folder), stand_in, server)
    print(json.dumps(figures, indent=2))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")


def _measure(folder: Path, stand_in: str, server: ShapedServer) -> dict[str, float]:
    boto3.client("s3", endpoint_url=stand_in, region_name="us-east-1").create_bucket(Bucket=BUCKET)
    os.environ["AWS_ENDPOINT_URL"] = server.endpoint  # for the node's worker
    prefix = uuid.uuid4().hex
    figures: dict[str, float] = {}
    with running_node(
        folder / "node",
        f"--object-store=s3://{BUCKET}/{prefix}",
        "--set",
        f"remote.cache.bytes={CACHE_BYTES}",
    ) as node:
        end_offsets = _fill(node, folder / "node")
        raw_gets = RawGets(server.endpoint, prefix)
        for shape_name, shape, scans in PACES:
            server.set_shape(shape)
            for scan in scans:
                age_cache = partial(_age_cache, node, end_offsets, server, shape)
                found = _compare(scan, node, end_offsets, raw_gets, age_cache)
                for name, figure in found.items():
                    figures[f"{shape_name}, {scan.name}: {name}"] = figure
        _fetch_latencies_ms(node)  # the first of everything
        loads = {
            "alone": [],
            "beside raw GETs": ["gets", server.endpoint, prefix],
        } | {
            f"beside {scan.name}": ["backfill", scan.name, str(node.port), *map(str, end_offsets)]
            for scan in BACKFILLS
        }
        for shape_name, shape, _ in TAIL_PACES:
            server.set_shape(shape)
            for name, arguments in loads.items():
                with _load(arguments):
                    percentiles = statistics.quantiles(_fetch_latencies_ms(node), n=100)
                figures[f"{shape_name}, tail fetch {name}: median ms"] = round(percentiles[49], 2)
                figures[f"{shape_name}, tail fetch {name}: p99 ms"] = round(percentiles[98], 2)
    return figures


def _fill(node: Node, data_dir: Path) -> list[int]:
    """Produce the topic, wait for its eviction, and return the partitions' tiered end offsets."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    config = {"segment.bytes": str(SEGMENT_BYTES), "local.retention.bytes": "1"}
    topics = [NewTopic(TOPIC, PARTITION_COUNT, 1, config=config), NewTopic(TAIL, 1, 1)]
    for created in admin.create_topics(topics).values():
        created.result(30)
    producer = Producer(
        {
            "bootstrap.servers": node.bootstrap,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for number in range(PARTITION_COUNT * RECORDS_OF_PARTITION):
        while True:
            try:
                producer.produce(
                    TOPIC, os.urandom(RECORD_SIZE_BYTES), partition=number % PARTITION_COUNT
                )
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(120):
        raise RuntimeError("not everything was acknowledged")
    return [_wait_until_evicted(data_dir / f"{TOPIC}-{partition}") for partition in EVERY]


def _wait_until_evicted(partition_dir: Path) -> int:
    """Return the partition's tiered end offset, once only the active segment is local."""
    deadline = time.monotonic() + EVICTED_SECONDS_MAX
    while len(local := sorted(partition_dir.glob("*.log"))) > 1:
        if time.monotonic() > deadline:
            raise TimeoutError("segments are not evicted")
        time.sleep(0.1)
    return int(local[0].stem)


def _compare(
    scan: Scan,
    node: Node,
    end_offsets: Sequence[int],
    raw_gets: RawGets,
    age_cache: Callable[[], None],
) -> dict[str, float]:
    """Return the speeds of the scan and of the raw GETs, and the node's CPU time."""
    passes: list[tuple[float, float, float]] = []
    readers = [ColdReader(node.port, scan.fetch_bytes) for _ in scan.readers]
    for _ in range(1 + PASSES):
        age_cache()
        used = node.cpu_seconds()
        started = time.perf_counter()
        size_bytes = _scan(scan, readers, end_offsets)
        scanned = size_bytes / 1e6 / (time.perf_counter() - started)
        used = (node.cpu_seconds() - used) / (size_bytes / 1e9)
        started = time.perf_counter()
        raw = raw_gets.run(scan.concurrency) / 1e6 / (time.perf_counter() - started)
        passes.append((scanned, raw, used))
        print(
            f"{scan.name}: {scanned:.0f} MB/s, raw GETs {raw:.0f} MB/s, "
            f"node and worker {used:.2f} s/GB",
            flush=True,
        )
    for reader in readers:
        reader.close()
    scanned, raw, used = (statistics.median(column) for column in zip(*passes[1:], strict=True))
    return {
        "scan MB/s": round(scanned, 1),
        "raw GETs MB/s": round(raw, 1),
        "ratio": round(scanned / raw, 3),
        "CPU seconds of node and worker per GB": round(used, 2),
    }


def _age_cache(
    node: Node, end_offsets: Sequence[int], server: ShapedServer, shape: Shape | None
) -> None:
    """Fill the cache with the partitions' second halves, which a scan evicts before it needs them.

    Without it four readers could find a whole partition in the cache and keep it there.
    """
    server.set_shape(None)
    reader = ColdReader(node.port, FETCH_BYTES)
    for partition in EVERY:
        reader.scan((partition,), end_offsets, begin=end_offsets[partition] // 2)
    reader.close()
    server.set_shape(shape)


def _scan(scan: Scan, readers: Sequence[ColdReader], end_offsets: Sequence[int]) -> int:
    """Have all readers read their parts at once; return the number of bytes."""
    with ThreadPoolExecutor(len(readers)) as threads:
        return sum(
            threads.map(
                lambda reader, turns: sum(reader.scan(turn, end_offsets) for turn in turns),
                readers,
                scan.readers,
            )
        )


class RawGets:
    """Gets every chunk of the topic's segments repeatedly, and discards it."""

    def __init__(self, endpoint: str, prefix: str) -> None:
        self._store = S3ObjectStore(BUCKET, prefix=prefix, endpoint=endpoint)
        self._chunks = asyncio.run(self._list())

    def run(self, concurrency: int) -> int:
        """Return the number of bytes received."""
        return asyncio.run(self._get_all(concurrency))

    async def _list(self) -> list[tuple[str, int, int]]:
        return [
            (found.key, start, min(start + CHUNK_BYTES, found.size_bytes))
            async for found in self._store.list("")
            if found.key.endswith(".log")
            for start in range(0, found.size_bytes, CHUNK_BYTES)
        ]

    async def _get_all(self, concurrency: int) -> int:
        slots = asyncio.Semaphore(concurrency)

        async def get(key: str, start: int, end: int) -> int:
            async with slots:
                return len(await self._store.get_range(key, start, end))

        return sum(await asyncio.gather(*(get(*chunk) for chunk in self._chunks)))


@contextmanager
def _load(arguments: list[str]) -> Iterator[None]:
    if not arguments:
        yield
        return
    process = subprocess.Popen([sys.executable, "-m", "bench.cold_reads", *arguments])
    try:
        time.sleep(3.0)  # until the load runs
        yield
        if process.poll() is not None:
            raise RuntimeError(f"{arguments[0]} ended with {process.returncode}")
    finally:
        process.kill()
        process.wait()


def _fetch_latencies_ms(node: Node) -> list[float]:
    """Repeatedly write a record and fetch it; return the fetches' latencies."""
    found = []
    batch = batch_of(b"x" * RECORD_SIZE_BYTES)
    with WireClient(node.port) as client:
        for _ in range(TAIL_ROUNDS):
            offset = client.produce(TAIL, batch).base_offset
            started = time.perf_counter()
            client.fetch(TAIL, offset)
            found.append((time.perf_counter() - started) * 1000)
            time.sleep(TAIL_PAUSE_S)
    return found


if __name__ == "__main__":
    main()
