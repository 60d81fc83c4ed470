"""The requests of obstore that end after their callers, and the end of the program.

obstore looks once more at a request that was given up, on a thread of its own, and takes Python's
lock for that. If Python has ended by then, the thread panics and prints a backtrace of Rust («The
Python interpreter is not initialized»). So a program gives up its open requests before its end, and
waits until obstore has let go of them.
"""

from __future__ import annotations

import asyncio
import atexit
import time
import weakref
from collections.abc import Awaitable
from functools import cache
from typing import TypeVar

from obstore.store import MemoryStore

END_SECONDS_MAX = 1.0
LOOK_SECONDS = 0.005

T = TypeVar("T")

_requests: set[weakref.ref[asyncio.Future[object]]] = set()


def tracked(request: Awaitable[T]) -> Awaitable[T]:
    """Return the request, which the end of the program considers from now on."""
    if isinstance(request, asyncio.Future):
        _requests.add(weakref.ref(request, _requests.discard))
        _wait_at_the_end()
    return request


@cache
def _wait_at_the_end() -> None:
    atexit.register(_end)


def _end() -> None:
    """Give up the open requests, and wait until obstore has let go of them, a second at most."""
    until = time.monotonic() + END_SECONDS_MAX
    while _give_up() and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
        MemoryStore()  # References that were dropped by threads of Rust are counted in such calls.


def _give_up() -> bool:
    """Cancel the open requests; return whether obstore still has one, cancelled now or before."""
    has_open = False
    for reference in list(_requests):
        request = reference()
        if request is None:
            continue
        if not request.done() and not request.get_loop().is_closed():
            request.get_loop().call_soon_threadsafe(request.cancel)
        has_open = has_open or not request.done() or request.cancelled()
    return has_open
