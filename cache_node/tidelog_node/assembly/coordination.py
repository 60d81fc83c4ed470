"""The coordinators of groups and transactions: imported and made when there is work for them.

They are needed from the first request to a coordinator on, and as soon as the cluster has the topic
whose partitions decide which node coordinates a group or transaction: deadlines of shards that this
node leads pass without any request. A cluster without groups and transactions has neither topic.

A thread imports the modules. Until that is done the node is like one that is slow to take over its
shards: requests wait, and everything else goes on (``late_imports`` says how the two interleave).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.model import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC

from tidelog_node.assembly.logs import Logs
from tidelog_node.node_context import NodeContext
from tidelog_node.processes.late_imports import imported

if TYPE_CHECKING:
    from tidelog_node.assembly.coordinators import Coordinators
    from tidelog_node.transactions.verifier import TransactionVerifier

logger = logging.getLogger(__name__)

Build = Callable[[AsyncExitStack, NodeContext, Logs], "Coordinators"]


class Coordination:
    """The node's coordinators, made once. For the tasks of one event loop."""

    def __init__(self, node: NodeContext, logs: Logs) -> None:
        self._node = node
        self._logs = logs
        self._made: Coordinators | None = None
        self._making = asyncio.Lock()
        self._coordinators = AsyncExitStack()
        self._connections = AsyncExitStack()
        self._beginning: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] = lambda: None
        self._is_closed = False

    @property
    def coordinators(self) -> Coordinators:
        """The coordinators, for callers that have awaited ``get``."""
        assert self._made is not None
        return self._made

    async def start(self) -> None:
        """Begin to coordinate the shards that the image gives to this node, now or later."""
        if _has_shards(self._node.view.image):
            await self.get()
        else:
            self._unsubscribe = self._node.view.subscribe(lambda image, _: self._follow(image))

    async def get(self) -> Coordinators:
        """Return the coordinators, started unless the node is stopping."""
        if self._made is None:
            async with self._making:
                if self._made is None:
                    self._made = await self._make()
        return self._made

    async def verifier(self) -> TransactionVerifier:
        """Return the verifier of transactions; makes the coordinators if there are none yet."""
        return (await self.get()).verifier

    async def close(self) -> None:
        """Finish the writes in progress, and send waiting clients to the next coordinators."""
        self._is_closed = True
        self._stop_following()
        if self._beginning is not None:
            await self._beginning
        await self._coordinators.aclose()

    async def close_connections(self) -> None:
        """Close the connections to other brokers. After ``close``."""
        await self._connections.aclose()

    async def _make(self) -> Coordinators:
        build = await imported(_load)
        made = build(self._connections, self._node, self._logs)
        if self._is_closed:
            # They take no shards over, and send the last requests to the next coordinators.
            await made.groups.close()
            await made.transactions.close()
            return made
        self._stop_following()
        await made.groups.start()
        self._coordinators.push_async_callback(made.groups.close)
        await made.transactions.start()
        self._coordinators.push_async_callback(made.transactions.close)
        return made

    def _follow(self, image: ClusterImage) -> None:
        is_beginning = self._beginning is not None and not self._beginning.done()
        if not is_beginning and self._made is None and _has_shards(image):
            self._beginning = asyncio.create_task(self._begin(), name="coordination")

    def _stop_following(self) -> None:
        unsubscribe, self._unsubscribe = self._unsubscribe, lambda: None
        unsubscribe()

    async def _begin(self) -> None:
        try:
            await self.get()
        except Exception:
            # The next change of the image, or request that needs them, tries again.
            logger.exception("coordinators cannot be started, will retry")


def _load() -> Build:
    from tidelog_node.assembly.coordinators import build_coordinators

    return build_coordinators


def _has_shards(image: ClusterImage) -> bool:
    return any(image.partitions(one) for one in (CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC))
