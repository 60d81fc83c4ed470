"""The length of an event loop's turns: all other callbacks wait for each of them.

Measured in CPU time, which other work on the machine changes little.

    with loop_turns() as turns:
        await work()
    assert turns.longest_seconds < 0.02
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class LoopTurns:
    """The turns measured so far."""

    total_seconds: float = 0.0
    longest_seconds: float = 0.0
    longest: str = ""  # the callback of the longest turn


@contextmanager
def loop_turns() -> Iterator[LoopTurns]:
    """Measure the turns that begin from now on, of this thread's loop.

    Garbage collection is off: the tests' own garbage would be measured too.
    """
    turns = LoopTurns()
    run = asyncio.Handle._run  # type: ignore[attr-defined]
    thread_id = threading.get_ident()

    def timed(handle: asyncio.Handle) -> None:
        if threading.get_ident() != thread_id:
            run(handle)
            return
        began = time.thread_time()
        try:
            run(handle)
        finally:
            seconds = time.thread_time() - began
            turns.total_seconds += seconds
            if seconds > turns.longest_seconds:
                turns.longest_seconds, turns.longest = seconds, repr(handle)

    is_collecting = gc.isenabled()
    gc.disable()
    asyncio.Handle._run = timed  # type: ignore[attr-defined]
    try:
        yield turns
    finally:
        asyncio.Handle._run = run  # type: ignore[attr-defined]
        if is_collecting:
            gc.enable()
