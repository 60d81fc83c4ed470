"""Assigns cores: one to the server under test, another to the clients."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pinned_to(core: int) -> Iterator[None]:
    """Keep the calling thread, and the processes it starts in the block, on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def server_and_client_core() -> tuple[int, int]:
    """Return two cores of this machine. Raises ``RuntimeError`` if it has only one."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise RuntimeError("server and clients need a core each, and there is only one")
    return cores[0], cores[1]
