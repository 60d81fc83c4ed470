"""Ports for the servers that tests, benchmarks and tools start.

They lie below the range that Linux takes outgoing connections' ports from
(32,768 and up), so no client's connection gets one between the choice and the
server's start. Processes that choose at the same time begin far from each other.
"""

from __future__ import annotations

import os
import socket

FIRST, END = 10_000, 32_000
_SPREAD = 7919  # a prime: neighbouring process ids begin thousands of ports apart
_next = FIRST + os.getpid() * _SPREAD % (END - FIRST)


def free_port() -> int:
    """Return a port of 127.0.0.1 that was free a moment ago."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """Return the first of so many such ports in a row. No port is returned twice in a round."""
    global _next  # noqa: PLW0603  # the process's place in the range
    for _ in range(FIRST, END, count):
        first = _next if _next + count <= END else FIRST
        _next = first + count
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise RuntimeError(f"no {count} free ports in a row in [{FIRST}, {END})")


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
