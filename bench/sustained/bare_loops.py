"""The work that no broker can do without to replicate, in bare loops.

A producer's batches are received, checked and appended once. For every other replica they are sent
from the leader's file, received, checked and appended again. As in a broker, each log is a new
file, and the system takes every page of it from its free memory. Loops that overwrite a file would
be spared that.

Leader and followers are processes on the core of the caller, as nodes and brokers are, and the time
of all counts. Only the producer is on the clients' core, and its time does not count.

    python -m bench.sustained.bare_loops <folder> <batches> <followers> <client core>

prints both costs as JSON, seconds per GB.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from bench.limits import loopback_pair

BATCH_SIZE_BYTES = 1_000_000  # the largest of librdkafka's defaults
_DRAWN_BYTES = 64 * BATCH_SIZE_BYTES


class Costs(NamedTuple):
    """CPU seconds per GB."""

    first_replica: float
    other_replicas: float  # of all together


def measure(batch_count: int, *, follower_count: int, client_core: int) -> Costs:
    """Return the costs, on the core of the calling thread."""
    with tempfile.TemporaryDirectory() as folder:
        numbers = batch_count, follower_count, client_core
        command = [sys.executable, "-m", __name__, folder, *map(str, numbers)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Costs(*json.loads(done.stdout))


def _first(folder: Path, batch_count: int, client_core: int) -> float:
    """Receive from another core, check, append; return the CPU seconds."""
    receiver, sender = loopback_pair()

    def pour() -> None:
        os.sched_setaffinity(0, {client_core})
        block = os.urandom(BATCH_SIZE_BYTES)
        for _ in range(batch_count):
            sender.sendall(block)

    reading = _forked(pour)
    sender.close()
    before = time.process_time()
    _receive(receiver, folder / "first", batch_count)
    used = time.process_time() - before
    os.read(reading, 64)
    return used


def _others(folder: Path, batch_count: int, follower_count: int) -> float:
    """Send every batch to each follower, which checks and appends it; return the CPU seconds."""
    size_bytes = batch_count * BATCH_SIZE_BYTES
    drawn = os.urandom(_DRAWN_BYTES)
    with (folder / "leader").open("wb") as file:
        for start in range(0, size_bytes, _DRAWN_BYTES):
            file.write(drawn[: size_bytes - start])
    pairs = [loopback_pair() for _ in range(follower_count)]
    readings = []
    for number, (receiver, _) in enumerate(pairs):

        def follow(receiver: socket.socket = receiver, number: int = number) -> None:
            for _, sender in pairs:
                sender.close()
            _receive(receiver, folder / f"follower-{number}", batch_count)

        readings.append(_forked(follow))
    before = time.process_time()
    with (folder / "leader").open("rb") as file:
        for start in range(0, size_bytes, BATCH_SIZE_BYTES):
            for _, sender in pairs:
                position, end = start, start + BATCH_SIZE_BYTES
                while position < end:
                    position += os.sendfile(
                        sender.fileno(), file.fileno(), position, end - position
                    )
    for _, sender in pairs:
        sender.close()
    used = time.process_time() - before
    return used + sum(float(os.read(reading, 64)) for reading in readings)


def _receive(receiver: socket.socket, path: Path, batch_count: int) -> None:
    buffer = memoryview(bytearray(BATCH_SIZE_BYTES))
    with receiver, path.open("wb", buffering=0) as log:
        while size_bytes := receiver.recv_into(buffer, BATCH_SIZE_BYTES, socket.MSG_WAITALL):
            crc32c(buffer[:size_bytes])
            log.write(buffer[:size_bytes])
        assert log.tell() == batch_count * BATCH_SIZE_BYTES, "every byte has arrived"


def _forked(work: Callable[[], None]) -> int:
    """Do the work in another process; return where its CPU seconds can be read once it ends."""
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        return reading
    status = 1
    try:
        before = time.process_time()
        work()
        os.write(writing, f"{time.process_time() - before}".encode())
        status = 0
    finally:
        os._exit(status)


def _main() -> None:
    folder = Path(sys.argv[1])
    batch_count, follower_count, client_core = map(int, sys.argv[2:])
    seconds = (
        _first(folder, batch_count, client_core),
        _others(folder, batch_count, follower_count),
    )
    gigabytes = batch_count * BATCH_SIZE_BYTES / 1e9
    print(json.dumps([one / gigabytes for one in seconds]))


if __name__ == "__main__":
    _main()
