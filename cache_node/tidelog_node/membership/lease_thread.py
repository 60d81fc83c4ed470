"""A thread with an event loop of its own for renewing the lease.

It shares the interpreter with the node's loop, which lets other threads run every 5 ms
however long one of its callbacks takes. Only a call into native code that keeps the
interpreter's lock holds up both.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

JOIN_SECONDS_MAX = 5.0


class LeaseThread:
    """Runs coroutines on its loop for tasks of another one. Started by the first of them."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Return when the work is done on the thread, or raise what it raised.

        Cancelling this cancels the work, and waits until it has ended.
        """
        loop = self._started()
        here = asyncio.get_running_loop()
        ended = asyncio.Event()
        tasks: list[asyncio.Task[None]] = []

        def begin() -> None:
            task = loop.create_task(work)
            task.add_done_callback(lambda _: here.call_soon_threadsafe(ended.set))
            tasks.append(task)

        def end() -> None:
            tasks[0].cancel()

        loop.call_soon_threadsafe(begin)
        try:
            await ended.wait()
        except asyncio.CancelledError:
            loop.call_soon_threadsafe(end)
            await ended.wait()
            tasks[0].result()
            raise
        tasks[0].result()

    async def close(self) -> None:
        """End the thread. Nothing runs on it any more."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join, JOIN_SECONDS_MAX)

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            # With a factory the runner does not make its loop the current one of this thread.
            runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
            self._loop = runner.get_loop()
            # A daemon: should the node's loop break, nothing keeps the process from ending.
            self._thread = threading.Thread(
                target=_run_loop, args=(runner,), name="lease", daemon=True
            )
            self._thread.start()
        return self._loop


def _run_loop(runner: asyncio.Runner) -> None:
    with runner:
        loop = runner.get_loop()
        asyncio.set_event_loop(loop)
        loop.run_forever()
