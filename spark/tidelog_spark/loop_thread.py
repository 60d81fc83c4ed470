"""An event loop in a thread of its own, for code that is not asynchronous.

Unlike the SDK's (``tidelog.sync``) it begins calls without waiting for them, and does
not bring the clients, which take long to load.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines beside the caller. A notebook's driver has a loop in its own thread."""

    def __init__(self, name: str) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def start(self, call: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin to run the coroutine. Its end is awaited, or ``settle`` is called."""
        return asyncio.run_coroutine_threadsafe(call, self._loop)

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine and return what it returns."""
        return self.start(call).result()

    def settle(self) -> None:
        """Wait until what was cancelled has stopped."""
        self.run(_settle())

    def stop(self) -> None:
        """End the thread. Nothing may run any more."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _settle() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)
