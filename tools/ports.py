"""Ports for the servers that tests, benchmarks and tools start.

They are below Linux's range for outgoing connections (32,768 and up), so no client's connection
takes a port between the choice and the server's start. No other process with this module takes it
either: each process locks its chosen ports until it ends, one byte for each port in a shared file.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from functools import cache
from pathlib import Path

FIRST, END = 10_000, 32_000
_SPREAD = 7919  # a prime: neighbouring process ids begin thousands of ports apart
_next = FIRST + os.getpid() * _SPREAD % (END - FIRST)


def free_port() -> int:
    """Return a port of 127.0.0.1 that was free a moment ago."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """Return the first of ``count`` free ports in a row. A round returns no port twice."""
    global _next  # noqa: PLW0603  # the process's place in the range
    for _ in range(FIRST, END, count):
        first = _next if _next + count <= END else FIRST
        _next = first + count
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise RuntimeError(f"no {count} free ports in a row in [{FIRST}, {END})")


def _is_free(port: int) -> bool:
    try:
        fcntl.lockf(_chosen(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


@cache
def _chosen() -> int:
    """Return the descriptor of the shared lock file; closing it would unlock all ports."""
    path = Path(tempfile.gettempdir()) / f"tidelog-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
