"""Removes the logs of deleted partitions, in turns with the loop's other work.

Closing a log and renaming its directory takes up to several milliseconds. It runs on the loop, so
that nothing uses the log in between. The first few logs are removed immediately. The other logs of
a large deletion are queued and accept no request. If a new partition needs the directory name of a
queued log, that log is removed first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Generic, TypeVar

from tidelog_core.log.deletion import remove_directories
from tidelog_core.model import TopicPartition

logger = logging.getLogger(__name__)

R = TypeVar("R")

AT_ONCE_MAX = 4  # logs removed immediately for one image
TURN_SECONDS = 0.005
REST_SECONDS = 0.005  # between two turns
DIRECTORIES_PER_JOB = 256  # removed by one thread, after one fsync of their parent


class LogRemoval(Generic[R]):
    """The queue of logs to remove. For the node's event loop."""

    def __init__(self, executor: Executor, take_away: Callable[[R], Path | None]) -> None:
        """``take_away`` closes a log and returns the directory to remove, ``None`` if none."""
        self._executor = executor
        self._take_away = take_away
        self._at_once_left = 0
        self._waiting: dict[TopicPartition, R] = {}
        self._renamed: list[Path] = []
        self._timer: asyncio.TimerHandle | None = None

    def allow_at_once(self) -> None:
        """Allow ``AT_ONCE_MAX`` logs to be removed immediately from now on."""
        self._at_once_left = AT_ONCE_MAX

    def add(self, partition: TopicPartition, replica: R) -> None:
        """Remove a log that can no longer be opened: immediately or in its turn."""
        self._waiting[partition] = replica
        if self._at_once_left > 0:
            self._at_once_left -= 1
            self.take(partition)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(REST_SECONDS, self._turn)

    def take(self, partition: TopicPartition) -> None:
        """Remove the log of this name now if it is queued: the name is needed."""
        replica = self._waiting.pop(partition, None)
        path = None if replica is None else self._take_away(replica)
        if path is not None:
            self._renamed.append(path)

    def finish(self) -> None:
        """Remove all queued logs now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for partition in tuple(self._waiting):
            self.take(partition)
        self._remove()

    def _turn(self) -> None:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + TURN_SECONDS
        while self._waiting and loop.time() < ends_at:
            self.take(next(iter(self._waiting)))
        if not self._waiting or len(self._renamed) >= DIRECTORIES_PER_JOB:
            self._remove()
        self._timer = loop.call_later(REST_SECONDS, self._turn) if self._waiting else None

    def _remove(self) -> None:
        if self._renamed:
            self._executor.submit(remove, self._renamed)
            self._renamed = []


def remove(directories: Sequence[Path]) -> None:
    """Remove directories that ``rename_deleted`` has renamed; log a failure. Blocks."""
    try:
        remove_directories(directories)
    except OSError as error:
        # The next start removes them (``remove_deleted_logs``).
        logger.error("deleted logs could not be removed", extra={"reason": str(error)})
