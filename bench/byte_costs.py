"""What a byte costs this machine: the least that a reader of records has to do with each.

Rates are bytes for each second of the process's CPU time, with buffers that are in use already,
unless they are said to be kept: then all of their memory is new.
"""

from __future__ import annotations

import mmap
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from crc32c import crc32c
from tidelog_core.records.codecs import CompressionType, compress
from tidelog_core.records.decompress_into import decompress_into

from bench.free_memory import touch_free_memory

BUFFER_BYTES = 8 * 1024 * 1024  # that of a fetch in ``scan_arrow``
REPEATS = 60
UNPACKED_BYTES = 64 * 1024  # at once, as a producer's batch
UNPACK_SECONDS = 0.2  # for each codec
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class ByteCosts(NamedTuple):
    """Bytes a second: received by TCP, copied, checked, and made by each codec."""

    receive: float
    receive_kept: float  # into memory that is new, because what was received before is kept
    copy: float
    crc32c: float
    unpack: dict[str, float]
    packed_part: dict[str, float]  # by codec: the part of the bytes that is received

    def ceiling(self, size_bytes: int, codec: str, *, is_kept: bool = False) -> float:
        """Return the records a second of which each byte is received, checked and copied once.

        With ``is_kept`` into memory that is new.
        """
        received = self.packed_part.get(codec, 1.0)
        seconds = received / self.receive + received / self.crc32c + 1 / self.copy
        if codec in self.unpack:
            seconds += 1 / self.unpack[codec]
        if is_kept:
            seconds += 1 / self.receive_kept - 1 / self.receive
        return 1 / (seconds * size_bytes)


def byte_costs(values: Sequence[bytes]) -> ByteCosts:
    """Measure, with codecs for such values."""
    source, target = bytearray(os.urandom(BUFFER_BYTES)), bytearray(BUFFER_BYTES)
    sample = b"".join(values)[:UNPACKED_BYTES]
    packed = {codec: compress(codec, sample) for codec in CompressionType if codec}

    def copy() -> None:
        target[:] = source

    return ByteCosts(
        receive=_receive_rate(target),
        receive_kept=_receive_rate(target, is_kept=True),
        copy=_rate(copy, BUFFER_BYTES),
        crc32c=_rate(lambda: crc32c(source), BUFFER_BYTES),
        unpack={codec.name.lower(): _unpack_rate(codec, data) for codec, data in packed.items()},
        packed_part={codec.name.lower(): len(data) / len(sample) for codec, data in packed.items()},
    )


def _rate(act: Callable[[], object], size_bytes: int) -> float:
    act()
    began = time.process_time()
    for _ in range(REPEATS):
        act()
    return REPEATS * size_bytes / (time.process_time() - began)


def _unpack_rate(codec: CompressionType, data: bytes) -> float:
    """Return the rate of unpacking, into memory that is in use already."""
    room, view = memoryview(bytearray(2 * UNPACKED_BYTES)), memoryview(data)
    made = 0
    began = time.process_time()
    while (spent := time.process_time() - began) < UNPACK_SECONDS:
        made += decompress_into(codec, view, room) or 0
    return made / spent


def _receive_rate(target: bytearray, *, is_kept: bool = False) -> float:
    """Return the rate of receiving from a process on another core."""
    kept: list[mmap.mmap] = []
    if is_kept:
        touch_free_memory(2 * REPEATS * len(target))
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
                if is_kept:
                    kept.append(mmap.mmap(-1, len(target), flags=_PRIVATE))
                    _receive(receiver, memoryview(kept[-1]))
                else:
                    _receive(receiver, view)
            spent = time.process_time() - began
        os.waitpid(child, 0)
    return REPEATS * len(target) / spent


def _receive(receiver: socket.socket, view: memoryview) -> None:
    at = 0
    while at < len(view):
        at += receiver.recv_into(view[at:])
