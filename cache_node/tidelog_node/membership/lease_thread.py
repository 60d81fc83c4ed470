"""A thread with its own event loop for renewing the lease.

It shares the interpreter with the node's loop, which gives way to other threads every 5 ms even
within a long callback. Only a call into native code that keeps the interpreter's lock blocks both.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

JOIN_SECONDS_MAX = 5.0


class LeaseThread:
    """Runs coroutines on its loop for tasks of another loop. The first one starts the thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Return when the work is done on the thread, or raise its error.

        Cancelling this cancels the work and waits until it has ended.
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
        """End the thread. All work on it has ended."""
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
            # A daemon: if the node's loop fails, this thread does not keep the process alive.
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
