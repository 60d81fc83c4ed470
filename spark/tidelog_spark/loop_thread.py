"""An event loop in its own thread, for synchronous code.

Unlike the SDK's (``tidelog.sync``) it can start calls without waiting for them, and does
not import the clients, which load slowly.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines in another thread: a notebook's driver has a loop in its own."""

    def __init__(self, name: str) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def start(self, call: Coroutine[Any, Any, T]) -> Future[T]:
        """Start the coroutine. Await its end, or call ``settle``."""
        return asyncio.run_coroutine_threadsafe(call, self._loop)

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine and return its result."""
        return self.start(call).result()

    def settle(self) -> None:
        """Wait until cancelled coroutines have stopped."""
        self.run(_settle())

    def stop(self) -> None:
        """End the thread. No coroutine may be running."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _settle() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)
