"""What reading back from the tier costs and disturbs; writes bench/results/cold_reads.json.

A node on SQLite with its objects in MiniStack's S3, all on this machine, and a topic that is
in the tier only. Two questions:

scan    bytes a second that one consumer gets who reads the topic from its start, over what
        as many raw GETs at once get of the same chunks as the node may have under way for
        one reader. Passes of both take turns; the first of each opens connections, and the
        median of the others counts. The cache is smaller than the topic, so each pass
        brings everything anew.
tail    how long a fetch of a record takes that was just written, with nothing beside it,
        with the raw GETs beside it, and with a consumer who reads the topic from the tier
        without end. The raw GETs tell what the stand-in's own work takes from the machine.

Everything shares the machine's cores here: the stand-in, the node, its worker, the clients.

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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tidelog_core.config import NodeConfig
from tidelog_core.objects.s3 import S3ObjectStore
from tidelog_core.records.batch import iter_headers

from bench.process import Node, running_node
from tests.node.wire_client import WireClient, a_batch, fetch_body, frame
from tools import ministack

RECORD_SIZE_BYTES = 1024
RECORD_COUNT = 700_000
SEGMENT_BYTES = 64 << 20
CACHE_BYTES = 256 << 20
FETCH_BYTES = 16 << 20
PASSES = 5
TAIL_ROUNDS = 1500
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
# What a reader waits for, and the half of all ranged reads that reading ahead may take.
CONCURRENCY = 1 + NodeConfig().remote_fetch_concurrency // 2
RESULTS = Path(__file__).parent / "results" / "cold_reads.json"
_ANSWER = struct.Struct(f">iihiih{len(TOPIC)}siihqqqiii")  # Fetch 11 up to the records


class ColdReader:
    """Reads the topic's one partition with one fetch at a time, and keeps nothing."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 120)
        self._buffer = bytearray(FETCH_BYTES + (1 << 20))

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def scan(self, end_offset: int) -> int:
        """Read from the start up to the offset and return how many bytes of records came."""
        offset = size_bytes = 0
        while offset < end_offset:
            records = self._fetch(offset)
            for _, header in iter_headers(records):
                offset = header.next_offset
            size_bytes += len(records)
        return size_bytes

    def _fetch(self, offset: int) -> memoryview:
        body = fetch_body(TOPIC, offset, max_wait_ms=500, partition_max_bytes=FETCH_BYTES)
        self._socket.sendall(frame(1, 11, 0, body, tags=b""))
        view = memoryview(self._buffer)
        self._receive(view[:4])
        (size_bytes,) = struct.unpack_from(">i", view)
        self._receive(view[:size_bytes])
        fields = _ANSWER.unpack_from(view)
        error, record_bytes = fields[9], fields[-1]
        if error:
            raise RuntimeError(f"the node answered error code {error}")
        return view[_ANSWER.size : _ANSWER.size + record_bytes]

    def _receive(self, view: memoryview) -> None:
        while view:
            got = self._socket.recv_into(view)
            if not got:
                raise EOFError("closed by the node")
            view = view[got:]


def main() -> None:
    """Measure and print; ``backfill`` and ``gets`` are the loads beside, as own processes."""
    match sys.argv[1:]:
        case ["backfill", port, end_offset]:
            reader = ColdReader(int(port))
            while True:
                reader.scan(int(end_offset))
        case ["gets", endpoint, prefix]:
            os.environ.update(CREDENTIALS)
            while True:
                asyncio.run(_raw_gets(endpoint, prefix))
    os.environ.update(CREDENTIALS)
    with tempfile.TemporaryDirectory() as folder, ministack.serve(Path(folder)) as endpoint:
        figures = _measure(Path(folder), endpoint)
    print(json.dumps(figures, indent=2))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")


def _measure(folder: Path, endpoint: str) -> dict[str, float]:
    boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket=BUCKET)
    os.environ["AWS_ENDPOINT_URL"] = endpoint  # for the node's worker
    prefix = uuid.uuid4().hex
    with running_node(
        folder / "node",
        f"--object-store=s3://{BUCKET}/{prefix}",
        "--set",
        f"remote.cache.bytes={CACHE_BYTES}",
    ) as node:
        end_offset = _fill(node, folder / "node")
        figures = _scans(node, endpoint, prefix, end_offset)
        _fetch_latencies_ms(node)  # the first of everything
        loads = {
            "alone": [],
            "beside raw GETs": ["gets", endpoint, prefix],
            "beside a backfill": ["backfill", str(node.port), str(end_offset)],
        }
        for name, arguments in loads.items():
            with _load(arguments):
                found = statistics.quantiles(_fetch_latencies_ms(node), n=100)
            figures[f"tail fetch {name}: median ms"] = round(found[49], 2)
            figures[f"tail fetch {name}: p99 ms"] = round(found[98], 2)
    return figures


def _fill(node: Node, data_dir: Path) -> int:
    """Produce the topic, wait until it is evicted, and return where its tier ends."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    config = {"segment.bytes": str(SEGMENT_BYTES), "local.retention.bytes": "1"}
    topics = [NewTopic(TOPIC, 1, 1, config=config), NewTopic(TAIL, 1, 1)]
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
    for _ in range(RECORD_COUNT):
        while True:
            try:
                producer.produce(TOPIC, os.urandom(RECORD_SIZE_BYTES))
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(120):
        raise RuntimeError("not everything was acknowledged")
    deadline = time.monotonic() + EVICTED_SECONDS_MAX
    while len(local := sorted((data_dir / f"{TOPIC}-0").glob("*.log"))) > 1:
        if time.monotonic() > deadline:
            raise TimeoutError("segments are not evicted")
        time.sleep(0.1)
    return int(local[0].stem)


def _scans(node: Node, endpoint: str, prefix: str, end_offset: int) -> dict[str, float]:
    scans: list[float] = []
    raw: list[float] = []
    reader = ColdReader(node.port)
    for _ in range(1 + PASSES):
        started = time.perf_counter()
        scans.append(reader.scan(end_offset) / 1e6 / (time.perf_counter() - started))
        started = time.perf_counter()
        size_bytes = asyncio.run(_raw_gets(endpoint, prefix))
        raw.append(size_bytes / 1e6 / (time.perf_counter() - started))
        print(f"scan {scans[-1]:.0f} MB/s, raw GETs {raw[-1]:.0f} MB/s", flush=True)
    reader.close()
    return {
        "scan MB/s": round(statistics.median(scans[1:]), 1),
        "raw GETs MB/s": round(statistics.median(raw[1:]), 1),
        "ratio": round(statistics.median(scans[1:]) / statistics.median(raw[1:]), 3),
    }


async def _raw_gets(endpoint: str, prefix: str) -> int:
    """Get every chunk of the topic's segments and return how many bytes came."""
    store = S3ObjectStore(BUCKET, prefix=prefix, endpoint=endpoint)
    slots = asyncio.Semaphore(CONCURRENCY)

    async def get(key: str, start: int, end: int) -> int:
        async with slots:
            return len(await store.get_range(key, start, end))

    objects = [found async for found in store.list("") if found.key.endswith(".log")]
    sizes = await asyncio.gather(
        *(
            get(found.key, start, min(start + CHUNK_BYTES, found.size_bytes))
            for found in objects
            for start in range(0, found.size_bytes, CHUNK_BYTES)
        )
    )
    await store.close()
    return sum(sizes)


@contextmanager
def _load(arguments: list[str]) -> Iterator[None]:
    if not arguments:
        yield
        return
    process = subprocess.Popen([sys.executable, "-m", "bench.cold_reads", *arguments])
    try:
        time.sleep(3.0)  # until it is under way
        yield
        if process.poll() is not None:
            raise RuntimeError(f"{arguments[0]} ended with {process.returncode}")
    finally:
        process.kill()
        process.wait()


def _fetch_latencies_ms(node: Node) -> list[float]:
    """Write a record and fetch it, again and again; return how long each fetch took."""
    found = []
    batch = a_batch(b"x" * RECORD_SIZE_BYTES)
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
