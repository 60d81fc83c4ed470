"""Measures a node's costs by number of partitions; writes bench/results/partitions.json.

One node on SQLite with 1, 100, 1,000 and 10,000 partitions in topics of at most 1,000, with a
record in each and a megabyte in a hundred of them. Its start after a clean stop is measured, then
metadata requests, an idle time, a read of every partition, and a start after a kill. CPU time and
memory are those of the node's process, from /proc. The tier worker is left out because its costs
do not depend on partitions. All counts take three minutes.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v11 import request as fetch
from kio.schema.metadata.v9 import request as metadata
from kio.schema.produce.v8 import request as produce
from tidelog_core.wire_messages import build

from bench.command_line import parser_of
from tests.support.batches import batch_of
from tests.support.node_process import NodeProcess
from tests.support.wire_client import WireClient, api_versions_request, encode, frame, milliseconds

COUNTS = (1, 100, 1_000, 10_000)
TOPIC_PARTITIONS_MAX = 1_000
BUSY_COUNT = 100
BUSY_RECORD_COUNT = 1_000
BUSY_RECORD_SIZE_BYTES = 1_000
BUSY_RECORDS_A_BATCH = 100
PARTITIONS_AT_ONCE = 100  # in one request
IDLE_SECONDS = 6.0
CALL_SECONDS_MAX = 120.0
WANTED = {"first_ack_after_clean_stop_s": 10.0, "rss_started_mb": 1000.0, "rss_read_mb": 1000.0}
RESULTS = Path(__file__).parent / "results" / "partitions.json"

Figures = dict[str, float]


def main() -> None:
    """Measure with every count; print and write the figures."""
    results: dict[str, dict[str, float]] = {}
    for count in _parser().parse_args().counts or COUNTS:
        with tempfile.TemporaryDirectory() as folder:
            results[str(count)] = _measure(Path(folder), count)
        print(f"{count}: {json.dumps(results[str(count)])}", flush=True)
    widest = results[max(results, key=int)]
    for name, limit in WANTED.items():
        verdict = "reached" if widest[name] <= limit else "MISSED"
        print(f"{name}: {widest[name]} of at most {limit:g}: {verdict}")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"wanted": WANTED, **results}, indent=2) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("partitions", __doc__)
    parser.add_argument(
        "counts",
        nargs="*",
        type=int,
        metavar="COUNT",
        help=f"of partitions ({' '.join(map(str, COUNTS))})",
    )
    return parser


def _measure(folder: Path, count: int) -> Figures:
    topics = _topics(count)
    figures: Figures = {}
    node = NodeProcess(folder / "node")
    try:
        node.start()
        figures |= _created(node, topics)
        with _client(node) as client:
            _produce_everywhere(client, topics, batch_of(b"x" * 100))
            _fill_busy(client, count)
        figures |= _footprint(node, "filled")
        figures |= _stopped(node)
        figures |= _started(node, topics, "clean_stop")
        figures |= _footprint(node, "started")
        figures |= _metadata(node, topics)
        figures["after_start_cpu_ms_per_s"] = _idle(node)
        figures |= _read(node, topics)
        figures |= _footprint(node, "read")
        figures["idle_cpu_ms_per_s"] = _idle(node)
        with _client(node) as client:
            _produce_everywhere(client, topics, batch_of(b"y" * 100))
        node.kill()
        figures |= _started(node, topics, "kill")
        figures |= _footprint(node, "recovered")
        figures |= {f"recovered_{key}": value for key, value in _stopped(node).items()}
    finally:
        if node.process is not None:
            node.kill()
    return {name: round(value, 3) for name, value in figures.items()}


def _topics(count: int) -> dict[str, int]:
    """Return the number of partitions by topic."""
    starts = range(0, count, TOPIC_PARTITIONS_MAX)
    return {f"t{n}": min(TOPIC_PARTITIONS_MAX, count - start) for n, start in enumerate(starts)}


def _created(node: NodeProcess, topics: dict[str, int]) -> Figures:
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.list_topics(timeout=10)
    cpu, begun = _cpu_seconds(node), time.perf_counter()
    for name, partitions in topics.items():
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(60)
    return {
        "create_topic_s": (time.perf_counter() - begun) / len(topics),
        "create_topic_cpu_s": (_cpu_seconds(node) - cpu) / len(topics),
    }


def _stopped(node: NodeProcess) -> Figures:
    begun = time.perf_counter()
    if node.stop():
        raise RuntimeError(f"the node did not end in order:\n{node.log[-2000:]}")
    return {"stop_s": time.perf_counter() - begun}


def _started(node: NodeProcess, topics: dict[str, int], after: str) -> Figures:
    begun = time.perf_counter()
    node.spawn()
    last = list(topics)[-1]
    with _client(node) as client:
        answer = client.produce(last, batch_of(b"first"), partition=topics[last] - 1)
        if answer.error_code is not ErrorCode.none:
            raise RuntimeError(f"not acknowledged: {answer}")
        return {
            f"first_ack_after_{after}_s": time.perf_counter() - begun,
            f"first_ack_after_{after}_cpu_s": _cpu_seconds(node),
        }


def _metadata(node: NodeProcess, topics: dict[str, int]) -> Figures:
    everything = build(metadata.MetadataRequest, topics=None, allow_auto_topic_creation=False)
    one = build(
        metadata.MetadataRequest,
        topics=(build(metadata.MetadataRequestTopic, name=next(iter(topics))),),
        allow_auto_topic_creation=False,
    )
    with _client(node) as client:
        return {
            "metadata_all_first_cpu_ms": _call_cost(node, client, [everything]),
            "metadata_all_cpu_ms": _call_cost(node, client, [everything] * 20),
            "metadata_one_first_cpu_ms": _call_cost(node, client, [one]),
            "metadata_one_cpu_ms": _call_cost(node, client, [one] * 100),
        }


def _call_cost(node: NodeProcess, client: WireClient, requests: Sequence[Any]) -> float:
    """Return the node's CPU time for a request, milliseconds."""
    cpu = _cpu_seconds(node)
    for request in requests:
        _exchange(client, request)
    return (_cpu_seconds(node) - cpu) / len(requests) * 1000


def _exchange(client: WireClient, request: Any) -> bytes:
    """Send a request and return the raw answer: decoding would take longer."""
    schema = type(request)
    tags = b"\x00" if schema.__flexible__ else b""
    body = encode(schema, request)
    client.send(frame(schema.__api_key__, schema.__version__, 1, body, tags=tags))
    return client.receive()


def _idle(node: NodeProcess) -> float:
    cpu = _cpu_seconds(node)
    time.sleep(IDLE_SECONDS)
    return (_cpu_seconds(node) - cpu) / IDLE_SECONDS * 1000


def _read(node: NodeProcess, topics: dict[str, int]) -> Figures:
    """Fetch from every partition, which opens its log, beside a client of small requests."""
    cpu = _cpu_seconds(node)
    with _client(node) as client, Bystander(node.port) as bystander:
        for name, numbers in _chunks(topics):
            partitions = tuple(
                build(
                    fetch.FetchPartition,
                    partition=number,
                    fetch_offset=0,
                    partition_max_bytes=1,
                )
                for number in numbers
            )
            request = build(
                fetch.FetchRequest,
                max_wait=milliseconds(0),
                min_bytes=0,
                max_bytes=1_000_000,
                topics=(build(fetch.FetchTopic, topic=name, partitions=partitions),),
            )
            _exchange(client, request)
    return {
        "read_all_cpu_s": _cpu_seconds(node) - cpu,
        "read_all_stall_ms": bystander.seconds_max * 1000,
    }


class Bystander:
    """A client of small requests, and the longest latency of one."""

    def __init__(self, port: int) -> None:
        self.seconds_max = 0.0
        self._port = port
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        with WireClient(self._port) as client:
            while not self._is_over.wait(0.002):
                begun = time.perf_counter()
                client.call(api_versions_request())
                self.seconds_max = max(self.seconds_max, time.perf_counter() - begun)


def _produce_everywhere(client: WireClient, topics: dict[str, int], batch: bytes) -> None:
    """Produce a batch to every partition."""
    for name, numbers in _chunks(topics):
        _produce(client, name, [(number, batch) for number in numbers])


def _fill_busy(client: WireClient, count: int) -> None:
    """Fill the busy partitions, spread over all, to about a megabyte."""
    batch = batch_of(*[random.randbytes(BUSY_RECORD_SIZE_BYTES)] * BUSY_RECORDS_A_BATCH)
    for index in range(0, count, max(1, count // BUSY_COUNT)):
        name, number = f"t{index // TOPIC_PARTITIONS_MAX}", index % TOPIC_PARTITIONS_MAX
        for _ in range(BUSY_RECORD_COUNT // BUSY_RECORDS_A_BATCH):
            _produce(client, name, [(number, batch)])


def _produce(client: WireClient, topic: str, batches: Iterable[tuple[int, bytes]]) -> None:
    data = tuple(
        build(produce.PartitionProduceData, index=number, records=batch)
        for number, batch in batches
    )
    answer = client.call(
        build(
            produce.ProduceRequest,
            acks=1,
            timeout=milliseconds(30_000),
            topic_data=(build(produce.TopicProduceData, name=topic, partition_data=data),),
        )
    )
    for result in answer.responses[0].partition_responses:
        if result.error_code is not ErrorCode.none:
            raise RuntimeError(f"{topic}-{result.index} does not take records: {result}")


def _chunks(topics: dict[str, int]) -> Iterator[tuple[str, range]]:
    """Yield all partitions, in groups of the size of one request."""
    for name, count in topics.items():
        for start in range(0, count, PARTITIONS_AT_ONCE):
            yield name, range(start, min(start + PARTITIONS_AT_ONCE, count))


def _footprint(node: NodeProcess, when: str) -> Figures:
    return {
        f"rss_{when}_mb": node.rss_bytes() / 1e6,
        f"descriptors_{when}": sum(1 for _ in Path(f"/proc/{node.pid}/fd").iterdir()),
    }


def _cpu_seconds(node: NodeProcess) -> float:
    """Return the process's CPU time so far, in nanoseconds, with its ended threads' time.

    Source: ``clock_getcpuclockid`` of the C library, which derives the clock's id from a process's.
    """
    return time.clock_gettime((~node.pid << 3) | 2)


@contextmanager
def _client(node: NodeProcess) -> Iterator[WireClient]:
    """Connect to a node that may be starting: it accepts connections before it serves."""
    deadline = time.perf_counter() + CALL_SECONDS_MAX
    while True:
        try:
            client = WireClient(node.port)
            break
        except ConnectionRefusedError:
            if time.perf_counter() > deadline:
                raise
            time.sleep(0.005)
    with client:
        client.socket.settimeout(CALL_SECONDS_MAX)
        yield client


if __name__ == "__main__":
    main()
