"""The node's event loop as the lease's thread sees it.

The loop stores a time stamp at every turn of a timer: the only value that passes from the loop to
the thread. In the other direction the thread makes the loop read the cluster and end its fence,
which only the loop may do, and reports when the metadata store is lost and when it is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tidelog_node.membership.membership import Membership
from tidelog_node.node_health import NodeHealth

STORE_LOST = "metadata-store-lost"


class NodeLoop:
    """Created on the node's loop. The thread reads ``turned_ms`` and calls ``end_fencing``."""

    def __init__(
        self,
        membership: Membership,
        *,
        read_cluster: Callable[[], Awaitable[object]],
        health: NodeHealth,
    ) -> None:
        """``read_cluster`` returns once the node has seen all commits that ended before it."""
        self._membership = membership
        self._read_cluster = read_cluster
        self._health = health
        self._loop = asyncio.get_running_loop()
        self._interval_s = membership.times.retry_ms / 1000
        self._timer: asyncio.TimerHandle | None = None
        self.turned_ms = membership.now_ms()  # when the loop last turned

    def start(self) -> None:
        """Store time stamps until ``stop``."""
        self.turned_ms = self._membership.now_ms()
        self._timer = self._loop.call_later(self._interval_s, self.start)

    def stop(self) -> None:
        """Store no more time stamps."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def end_fencing(self) -> None:
        """Make the loop read the cluster and, if the lease still holds after that, end the fence.

        For any thread with an event loop. Raises ``StoreUnavailable``.
        """
        reading = asyncio.run_coroutine_threadsafe(self._end_fencing(), self._loop)
        await asyncio.wrap_future(reading)

    def report_store_lost(self, detail: str) -> None:
        """Report that the metadata store was deleted or replaced. For any thread."""
        self._loop.call_soon_threadsafe(self._health.report, STORE_LOST, detail)

    def clear_store_lost(self) -> None:
        """Report that the metadata store is back. For any thread."""
        self._loop.call_soon_threadsafe(self._health.clear, STORE_LOST)

    async def _end_fencing(self) -> None:
        started_ms = self._membership.now_ms()
        await self._read_cluster()
        self._membership.on_cluster_read(started_ms)
