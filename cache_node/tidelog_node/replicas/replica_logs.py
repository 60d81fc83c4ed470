"""Opens, recovers, closes and removes the logs of a node's replicas.

Opening and closing wait for the disk, so threads do it when there are many logs. A thread gets
several logs to open at a time: handing over each one alone costs as much as recovering it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from tidelog_core.batched import batched
from tidelog_core.config import NodeConfig
from tidelog_core.errors import StorageError, TidelogError
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.segments.open_files import OpenFiles

from tidelog_node.logs.directories import LogDirectories
from tidelog_node.logs.log_opener import open_each
from tidelog_node.replicas.replica import Replica

logger = logging.getLogger(__name__)

CLOSE_THREADS = 16  # an fsync waits for the disk, which handles several at once
CLOSE_SECONDS_MAX = 25.0  # 10,000 logs take 10 to 13
LEFT_SECONDS_MAX = 5.0  # of them, for logs of partitions that the node has left
OPEN_AT_ONCE = 32  # logs of one job of a thread


class ReplicaLogs:
    """Opens and closes the logs of one node. ``open`` is for any thread."""

    def __init__(
        self,
        *,
        directories: LogDirectories,
        node_config: Callable[[], NodeConfig],
        executor: Executor,
        open_files: OpenFiles,
    ) -> None:
        self._directories = directories
        self._node_config = node_config
        self._executor = executor
        self._open_files = open_files

    def open(self, replica: Replica) -> LocalLog:
        """Return the replica's log; create it if there is none. Raises as ``LocalLog.open``."""
        directory = self._directories.claim(replica.partition, replica.topic_id)
        log = LocalLog.open(
            directory,
            replica.partition,
            config=replica.config,
            log_start_offset=replica.log_start_offset,
            producer_id_expiration_ms=self._node_config().producer_id_expiration_ms,
            open_files=self._open_files,
            on_offline=replica.note_offline,
        )
        if replica.role is None and replica.is_leader:
            log.assign_leader_epoch(replica.leader_epoch)
        return log

    async def recover(self, replicas: Collection[Replica]) -> None:
        """Open every log that has files, which recovers it, in the executor's threads."""
        loop = asyncio.get_running_loop()
        to_open = [replica for replica in replicas if self._directories.holds(replica)]
        jobs = [
            loop.run_in_executor(self._executor, open_each, some)
            for some in batched(to_open, OPEN_AT_ONCE)
        ]
        for problems in await asyncio.gather(*jobs):
            for replica, problem in problems:
                logger.error(
                    "log could not be recovered, its partition is offline",
                    extra={"partition": str(replica.partition), "reason": str(problem)},
                )

    async def close(self, replicas: Collection[Replica], left: Collection[Replica] = ()) -> None:
        """Close every log; mark the shutdown as clean if all were closed and none is in trouble.

        The logs must be unused. ``CLOSE_THREADS`` are closed at a time, those that have not begun
        after ``CLOSE_SECONDS_MAX`` are not. Without the mark the next start recovers all logs.

        ``left`` are open logs of diskless partitions that this node has left. They come last, and
        the mark does not depend on them: one that is not flushed is as after a crash, so it is
        recovered if it is ever opened again.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + CLOSE_SECONDS_MAX
        is_clean = not any(replica.is_in_trouble for replica in replicas)
        opened = []
        for replica in replicas:
            with replica.opening:
                if replica.opened_log is not None:
                    opened.append(replica)
                else:
                    # A thread of the executor may be about to open it.
                    replica.refuse(StorageError("the node is stopping"))
        problems, late_count = await _close_each(opened, CLOSE_SECONDS_MAX)
        if late_count:
            logger.warning("logs not closed in time", extra={"count": late_count})
        for replica, problem in problems.items():
            logger.error(
                "log could not be closed",
                extra={"partition": str(replica.partition), "reason": str(problem)},
            )
        if is_clean and not late_count and not problems:
            self._directories.mark_clean()
        await self._close_left(left, min(LEFT_SECONDS_MAX, ends_at - loop.time()))

    async def _close_left(self, replicas: Collection[Replica], seconds: float) -> None:
        problems, _ = await _close_each(replicas, seconds)
        for replica, problem in problems.items():
            logger.warning(
                "log not closed in order",
                extra={"partition": str(replica.partition), "reason": str(problem)},
            )
        unflushed = 0
        for replica in replicas:
            log = replica.opened_log
            if log is not None:
                log.take_offline()  # An offline log is closed without a flush.
                replica.close()
                unflushed += 1
        if unflushed:
            logger.info("logs of left partitions not flushed", extra={"count": unflushed})

    def take_away(self, replica: Replica) -> Path | None:
        """Close the log of a dropped replica; return its renamed directory, ``None`` if none."""
        log = replica.opened_log
        replica.let_go()
        try:
            if log is not None:
                return log.begin_deletion()
            if self._directories.holds(replica):
                return self._directories.rename_deleted(replica)
        except (TidelogError, OSError) as error:
            logger.error(
                "log of a deleted topic could not be removed",
                extra={"partition": str(replica.partition), "reason": str(error)},
            )
        return None


async def _close_each(
    replicas: Collection[Replica], seconds: float
) -> tuple[dict[Replica, BaseException], int]:
    """Close the open logs; begin with none after this time.

    Return the errors, and how many logs were not closed in time: some may be closed later.
    """
    loop = asyncio.get_running_loop()
    pool = ThreadPoolExecutor(CLOSE_THREADS, "tidelog-close")
    closing = {loop.run_in_executor(pool, replica.close): replica for replica in replicas}
    if closing:
        await asyncio.wait(closing, timeout=max(0.0, seconds))
    pool.shutdown(wait=True, cancel_futures=True)
    problems = {
        replica: problem
        for future, replica in closing.items()
        if future.done() and not future.cancelled() and (problem := future.exception()) is not None
    }
    return problems, sum(not future.done() for future in closing)
