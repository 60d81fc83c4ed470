"""Runs the background tasks of a node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

logger = logging.getLogger(__name__)


class Background:
    """Tasks that must never end before the node does."""

    def __init__(self, stop: asyncio.Event) -> None:
        """``stop`` stops the node when it is set."""
        self._stop = stop
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the work; if it ends, the node is stopped."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    async def close(self) -> None:
        """Cancel the tasks. Raises the error of one that has failed."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            logger.error("background task ended", exc_info=task.exception())
            self._stop.set()
