"""Ends a connection that keeps OpenSSL busy, and the loop with it.

OpenSSL on a socket receives until it has bytes to hand out. A client may send changes of its key,
or in TLS 1.2 attempts to renegotiate, which have none: OpenSSL goes on while more come, and nobody
else is served. Python has no way to limit one read. So a thread of this watch looks on, and puts an
empty file in place of the socket of a read that takes too long.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time

logger = logging.getLogger(__name__)

CPU_SECONDS_MAX = 0.25  # of one read; 128 KiB of records take some milliseconds
NULL_DEVICE = "/dev/null"


class ReadWatch:
    """Watches the reads of one loop. Made on the loop's thread, which calls all but ``_run``."""

    def __init__(self, *, cpu_seconds_max: float = CPU_SECONDS_MAX) -> None:
        self._cpu_seconds_max = cpu_seconds_max
        # Of the loop's thread, so that a busy machine ends no connection.
        self._cpu_clock = time.pthread_getcpuclockid(threading.get_ident())
        self._number = 0  # odd while a read is under way
        self._socket: socket.socket | None = None  # whose read that is
        self._lock = threading.Lock()  # held where a read ends, and while it is cut short
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidelog-tls-watch", daemon=True)
        self._thread.start()

    def begin(self, sock: socket.socket) -> None:
        """Note that a read of this socket begins."""
        self._socket = sock
        self._number += 1

    def end(self) -> None:
        """Note that it has ended."""
        with self._lock:
            self._number += 1
            self._socket = None

    def close(self) -> None:
        """End the thread."""
        self._is_closed.set()
        self._thread.join()

    # -- the thread --

    def _run(self) -> None:
        seen, seen_at = 0, 0.0
        cut = 0  # the read that was cut short last; its end may not have come to the loop yet
        while not self._is_closed.wait(self._cpu_seconds_max):
            number, now = self._number, time.clock_gettime(self._cpu_clock)
            if number != seen or number % 2 == 0:
                seen, seen_at = number, now
            elif number != cut and now - seen_at >= self._cpu_seconds_max:
                self._cut_short(number)
                cut = number

    def _cut_short(self, number: int) -> None:
        """Close the connection below the read: OpenSSL finds the end of the bytes."""
        with self._lock:
            if self._number != number or self._socket is None:
                return
            descriptor = self._socket.fileno()
            try:
                client, *_ = self._socket.getpeername()
            except OSError:
                client = "unknown"
            empty = os.open(NULL_DEVICE, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.dup2(empty, descriptor, inheritable=False)
            finally:
                os.close(empty)
        logger.warning(
            "connection closed",
            extra={"client": client, "reason": "the client sends TLS messages without any bytes"},
        )
