"""Measures the time from a record's due time until a consumer has it, at a steady pace.

One raw client thread produces and consumes. A produce request is due every millisecond, with the
number of 1 KB records that the pace requires, and one long poll waits for them. The time of a
request that is sent late, because the server delays the connection, counts from its due time (no
coordinated omission). The client parses only offsets, so the server is measured, not the client.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bench.peers import bare_relay, topics
from bench.peers.arena import Arena
from bench.peers.cores import pinned_to
from bench.peers.figures import Case
from bench.peers.frames import Frames
from bench.peers.peer import Peer
from tests.support.batches import batch_of
from tests.support.wire_client import fetch_body, frame, produce_body
from tools.ports import free_port
from tools.server_process import running

WORKLOAD = "latency"
RECORD_SIZE_BYTES = 1024
_TICK_SECONDS = 0.001
_SETTLING_TICKS = 1000  # not counted
_COUNTED_TICKS = 5000
_START_SECONDS_MAX = 20.0
# A virtual machine compiles for this long; before that its p99 is four times as high.
_WARM_UP_ROUNDS = 3
_LAG_SECONDS_MAX = 15.0  # after the last request was due
_FETCH = 1, 11  # key and version of the requests that ``fetch_body`` writes
_FETCH_WAIT_MS = 500
_FETCH_BYTES_MAX = 16_000_000


def cases(*, is_quick: bool) -> list[Case]:
    """Return a cell for each pace; the quick run has only the goal's."""
    paces = (10,) if is_quick else (1, 10, 50)
    works = {name_of(pace): _Work(pace) for pace in paces}
    return [
        Case(WORKLOAD, name, work, bare=work.bare, warm_up_rounds=_WARM_UP_ROUNDS)
        for name, work in works.items()
    ]


def name_of(megabytes_per_second: int) -> str:
    """Return the name of the cell with this pace."""
    return f"{megabytes_per_second} MB/s"


@dataclass(frozen=True, slots=True)
class _Work:
    megabytes_per_second: int

    def __call__(self, arena: Arena, peer: Peer) -> Mapping[str, float]:
        node = arena.node(peer)
        with arena.stopped_except(peer), topics.fresh_topic(node, peer) as topic:
            cpu_before, started = node.cpu_seconds(), time.perf_counter()
            figures = _percentiles(node.port, topic, self.megabytes_per_second)
            cpu, wall = node.cpu_seconds() - cpu_before, time.perf_counter() - started
        return {**figures, "cores_used": cpu / wall}

    def bare(self, arena: Arena) -> Mapping[str, float]:
        """Return the latencies of a server with only the work that every broker must do."""
        port, topic = free_port(), bare_relay.TOPIC
        command = [sys.executable, "-m", bare_relay.__name__, str(port)]
        with (
            arena.stopped_except(None),
            running("the bare relay", command, port=port, start_seconds_max=_START_SECONDS_MAX),
            pinned_to(arena.client_core),
        ):
            return _percentiles(port, topic, self.megabytes_per_second)


def _percentiles(port: int, topic: str, megabytes_per_second: int) -> dict[str, float]:
    batch_records = max(1, megabytes_per_second * 1000 // RECORD_SIZE_BYTES)
    latencies = list(_paced(port, topic, batch_records, _SETTLING_TICKS + _COUNTED_TICKS))
    counted = sorted(latencies[_SETTLING_TICKS:])
    return {
        "p50_ms": _percentile(counted, 50) * 1000,
        "p99_ms": _percentile(counted, 99) * 1000,
        "p99.9_ms": _percentile(counted, 99.9) * 1000,
    }


def _percentile(ordered: list[float], percent: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def _paced(port: int, topic: str, batch_records: int, tick_count: int) -> Iterator[float]:
    """Yield the latency of every request's records, seconds, in order.

    Raises ``RuntimeError`` if the server refuses a request or is too late.
    """
    batch = batch_of(*[b"v" * RECORD_SIZE_BYTES] * batch_records)
    body = produce_body(topic, batch)
    request = frame(*topics.PRODUCE, 1, body, tags=b"")
    with _connect(port) as producer, _connect(port) as consumer:
        acknowledged, fetched = Frames(producer), Frames(consumer)
        sent = received = next_offset = 0
        consumer.sendall(_fetch_frame(topic, next_offset))
        start = time.perf_counter()
        while received < tick_count:
            now = time.perf_counter()
            if now > start + tick_count * _TICK_SECONDS + _LAG_SECONDS_MAX:
                raise RuntimeError(f"{tick_count - received} of {tick_count} requests are behind")
            if sent < tick_count and now >= start + sent * _TICK_SECONDS:
                producer.sendall(request)
                sent += 1
                continue
            due_in = start + sent * _TICK_SECONDS - now if sent < tick_count else 0.1
            readable, _, _ = select.select([producer, consumer], [], [], due_in)
            if producer in readable:
                for answer in acknowledged.receive():
                    topics.check_produced(answer, topic)
            if consumer in readable:
                for answer in fetched.receive():
                    now = time.perf_counter()
                    next_offset = max(next_offset, _end_offset(answer, topic))
                    consumer.sendall(_fetch_frame(topic, next_offset))
                    for index in range(received, next_offset // batch_records):
                        yield now - (start + index * _TICK_SECONDS)
                    received = next_offset // batch_records


def _connect(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), 10)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def _fetch_frame(topic: str, offset: int) -> bytes:
    body = fetch_body(
        topic, offset, max_wait_ms=_FETCH_WAIT_MS, partition_max_bytes=_FETCH_BYTES_MAX
    )
    return frame(*_FETCH, 1, body, tags=b"")


def _end_offset(answer: bytes, topic: str) -> int:
    """Return the offset after the last whole batch, 0 without one."""
    # correlation id, throttle time; error code and session id
    position = 4 + 4 + 2 + 4
    (topic_count,) = struct.unpack_from(">i", answer, position)
    if topic_count == 0:  # Tansu omits partitions without records.
        return 0
    # the count, the topic's name, its one partition
    position += 4 + 2 + len(topic) + 4
    (error,) = struct.unpack_from(">h", answer, position + 4)
    if error:
        raise RuntimeError(f"a fetch was answered with error code {error}")
    # index, error code, high watermark, last stable offset, log start offset
    position += 4 + 2 + 8 + 8 + 8
    (aborted_count,) = struct.unpack_from(">i", answer, position)
    # aborted transactions, preferred replica, size of the records
    position += 4 + max(0, aborted_count) * 16 + 4 + 4
    end = 0
    while position + 27 <= len(answer):
        base_offset, size = struct.unpack_from(">qi", answer, position)
        if position + 12 + size > len(answer):
            break
        (last_delta,) = struct.unpack_from(">i", answer, position + 23)
        end = base_offset + last_delta + 1
        position += 12 + size
    return end
