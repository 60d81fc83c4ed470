"""What a byte costs this machine: the least that a reader of records has to do with each.

Rates are bytes for each second of the process's CPU time, with buffers that are in use already.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

import lz4.frame
from crc32c import crc32c

BUFFER_BYTES = 8 * 1024 * 1024  # that of a fetch in ``scan_arrow``
REPEATS = 60


class ByteCosts(NamedTuple):
    """Bytes a second: received by TCP, copied, checked, and made by LZ4."""

    receive: float
    copy: float
    crc32c: float
    lz4: float

    def ceiling(self, size_bytes: int, codec: str) -> float | None:
        """Return the records a second of which each byte is received, checked and copied once.

        Known for no codec and for LZ4, with values that are compressed to half.
        """
        received = {"none": 1.0, "lz4": 0.5}.get(codec)
        if received is None:
            return None
        seconds = received / self.receive + received / self.crc32c + 1 / self.copy
        if codec == "lz4":
            seconds += 1 / self.lz4
        return 1 / (seconds * size_bytes)


def byte_costs(value: bytes) -> ByteCosts:
    """Measure, with LZ4 for values such as this one."""
    source, target = bytearray(os.urandom(BUFFER_BYTES)), bytearray(BUFFER_BYTES)
    packed = lz4.frame.compress(
        value * (BUFFER_BYTES // 8 // len(value)),
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
    )
    unpacked = len(lz4.frame.decompress(packed))

    def copy() -> None:
        target[:] = source

    return ByteCosts(
        receive=_receive_rate(target),
        copy=_rate(copy, BUFFER_BYTES),
        crc32c=_rate(lambda: crc32c(source), BUFFER_BYTES),
        lz4=_rate(lambda: lz4.frame.decompress(packed), unpacked),
    )


def _rate(act: Callable[[], object], size_bytes: int) -> float:
    act()
    began = time.process_time()
    for _ in range(REPEATS):
        act()
    return REPEATS * size_bytes / (time.process_time() - began)


def _receive_rate(target: bytearray) -> float:
    """Return the rate of receiving from a process on another core."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = os.fork()
        if child == 0:
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
            with socket.create_connection(server.getsockname()) as sender:
                for _ in range(REPEATS + 1):
                    sender.sendall(target)
            os._exit(0)
        receiver, _ = server.accept()
        with receiver, memoryview(target) as view:
            _receive(receiver, view)
            began = time.process_time()
            for _ in range(REPEATS):
                _receive(receiver, view)
            spent = time.process_time() - began
        os.waitpid(child, 0)
    return REPEATS * len(target) / spent


def _receive(receiver: socket.socket, view: memoryview) -> None:
    at = 0
    while at < len(view):
        at += receiver.recv_into(view[at:])
