"""The node's event loop as the lease's thread sees it.

The loop leaves a time stamp at every turn of a timer. That one number is all that passes
from the loop to the thread; in the other direction the thread asks the loop to read the
cluster and to take its fence away, which only the loop may do, and says when the metadata
store is gone and when it is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tidelog_node.membership.membership import Membership
from tidelog_node.node_health import NodeHealth

STORE_LOST = "metadata-store-lost"


class NodeLoop:
    """Made on the node's loop. The thread reads ``turned_ms`` and calls ``end_fencing``."""

    def __init__(
        self,
        membership: Membership,
        *,
        read_cluster: Callable[[], Awaitable[object]],
        health: NodeHealth,
    ) -> None:
        """``read_cluster`` returns once the node has seen every commit that had ended before."""
        self._membership = membership
        self._read_cluster = read_cluster
        self._health = health
        self._loop = asyncio.get_running_loop()
        self._interval_s = membership.times.retry_ms / 1000
        self._timer: asyncio.TimerHandle | None = None
        self.turned_ms = membership.now_ms()  # when the loop was last seen to turn

    def start(self) -> None:
        """Leave time stamps until ``stop``."""
        self.turned_ms = self._membership.now_ms()
        self._timer = self._loop.call_later(self._interval_s, self.start)

    def stop(self) -> None:
        """Leave no more time stamps."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def end_fencing(self) -> None:
        """Have the loop read the cluster and, if the lease still holds then, act again.

        For any thread with an event loop. Raises ``StoreUnavailable``.
        """
        reading = asyncio.run_coroutine_threadsafe(self._end_fencing(), self._loop)
        await asyncio.wrap_future(reading)

    def report_store_lost(self, detail: str) -> None:
        """Report that the metadata store is not where it was. For any thread."""
        self._loop.call_soon_threadsafe(self._health.report, STORE_LOST, detail)

    def clear_store_lost(self) -> None:
        """Report that the metadata store is back. For any thread."""
        self._loop.call_soon_threadsafe(self._health.clear, STORE_LOST)

    async def _end_fencing(self) -> None:
        started_ms = self._membership.now_ms()
        await self._read_cluster()
        self._membership.on_cluster_read(started_ms)
