"""Opens the logs of new partitions, a few at a time, on the executor's threads.

A replicated partition needs its log before it can be led or followed, and creating the files
of a log takes up to several milliseconds. The loop opens the first few logs itself, so the logs
of a topic with few partitions are open when its creation is answered. Other logs are queued.
Their partitions have no role on this node until the log is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import Generic, Protocol, TypeVar

from tidelog_core.batched import batched

OPEN_HERE_MAX = 4  # logs that the loop may open by itself for one image
ROUND_LOGS_MAX = 256  # opened before ``on_round`` is called
JOB_LOGS_MAX = 8  # that one thread opens before other work of the executor may run
JOBS_AT_ONCE = 2


class Openable(Protocol):
    """A partition's log that is not open yet."""

    def open(self) -> None:
        """Open it, in any thread. Raises any error that prevents it."""


L = TypeVar("L", bound=Openable)


class LogOpener(Generic[L]):
    """The queue of logs to open. For the node's event loop."""

    def __init__(
        self, executor: Executor, on_round: Callable[[Collection[L], Mapping[L, Exception]], None]
    ) -> None:
        """``on_round`` is called with the opened logs, and with the failed ones' errors."""
        self._executor = executor
        self._on_round = on_round
        self._here_left = 0
        self._waiting: dict[L, None] = {}  # first come, first served
        self._round: set[L] = set()  # being opened
        self._task: asyncio.Task[None] | None = None

    def allow_here(self, count: int = OPEN_HERE_MAX) -> None:
        """Allow the loop to open ``count`` logs itself from now on."""
        self._here_left = count

    def takes(self, log: L, *, may_open_here: bool = True) -> bool:
        """Return whether the log is in a round, or queued for one; if not, the caller opens it.

        Without ``may_open_here`` it is queued in any case: opening it waits for the disk.
        """
        if log in self._waiting or log in self._round:
            return True
        if may_open_here and self._here_left > 0 and self._task is None:
            self._here_left -= 1
            return False
        self._waiting[log] = None
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="open logs")
        return True

    def discard(self, log: L) -> None:
        """Forget a log that is no longer needed. It may be open by now."""
        self._waiting.pop(log, None)
        self._round.discard(log)

    async def close(self) -> None:
        """Stop opening logs."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._waiting:
                some = list(islice(self._waiting, ROUND_LOGS_MAX))
                self._round = set(some)
                for log in some:
                    del self._waiting[log]
                problems = await self._open(some)
                wanted, self._round = self._round, set()
                failed = {log: error for log, error in problems if log in wanted}
                self._on_round(wanted - failed.keys(), failed)
        finally:
            self._task = None

    async def _open(self, logs: Sequence[L]) -> list[tuple[L, Exception]]:
        """Open the logs on the executor; return those that could not be opened, with the errors."""
        loop = asyncio.get_running_loop()
        jobs = list(batched(logs, JOB_LOGS_MAX))
        problems: list[tuple[L, Exception]] = []
        for some in batched(jobs, JOBS_AT_ONCE):
            running = [loop.run_in_executor(self._executor, open_each, job) for job in some]
            for found in await asyncio.gather(*running):
                problems += found
        return problems


def open_each(logs: Sequence[L]) -> list[tuple[L, Exception]]:
    """Open the logs; return those that could not be opened, with the errors."""
    problems: list[tuple[L, Exception]] = []
    for log in logs:
        try:
            log.open()
        except Exception as error:  # One log must not keep the others from being opened.
            problems.append((log, error))
    return problems
