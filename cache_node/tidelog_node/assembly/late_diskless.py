"""The parts for diskless partitions: imported and started with the cluster's first such topic.

A node that starts in a cluster with such topics, or as a gateway, starts them immediately; also if
such a topic was deleted not long ago. Any other node has a thread import them when its image shows
the first topic (``late_imports`` says how the two interleave). Until then it is like a node that is
slow to enter its partitions: partitions that it was elected to lead are entered afterwards, and
notes of leaders on partitions that it follows are kept (``kept_notes``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

from tidelog_core.errors import StoreUnavailable
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.replication.placement.heirs import wants_diskless
from tidelog_core.retention.deleted_topics import has_marks

from tidelog_node.assembly.cluster import Cluster
from tidelog_node.assembly.logs import GATEWAY_DIR, Logs
from tidelog_node.assembly.serving import Serving
from tidelog_node.follower.fetchers import FollowerFetchers
from tidelog_node.follower.kept_notes import KeptNotes
from tidelog_node.processes.late_imports import imported
from tidelog_node.settings import NodeSettings

if TYPE_CHECKING:
    from tidelog_node.diskless.chain.node_chain import NodeChain


logger = logging.getLogger(__name__)

RETRY_SECONDS = 5.0  # after an import that failed


class LateDiskless:
    """Starts the parts once. For the tasks of one event loop."""

    def __init__(
        self,
        settings: NodeSettings,
        cluster: Cluster,
        logs: Logs,
        fetchers: FollowerFetchers,
        *,
        stop: asyncio.Event,
        serving: Serving,
    ) -> None:
        """``stop`` is set if one of the parts fails."""
        self._settings = settings
        self._cluster = cluster
        self._logs = logs
        self._fetchers = fetchers
        self._kept_notes = KeptNotes(fetchers.committed)
        self._stop = stop
        self._serving = serving
        self._chain: NodeChain | None = None
        self._starting = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._is_needed = asyncio.Event()
        self._is_late = False  # elections may have been missed
        self._is_closed = False

    async def start(self) -> None:
        """Start the parts if they are needed now; ``run`` does it later."""
        view = self._cluster.node.view
        self._serving.chain_store.check = self._check_store
        if (
            self._cluster.node.static_config.diskless_gateways_enable
            or (self._settings.data_dir / GATEWAY_DIR).exists()  # of a node that was one
            # Somebody has to seal its chains, else nobody collects them.
            or (bool(view.image.deleted_topics) and await has_marks(self._cluster.node.store))
        ):
            self._is_needed.set()
        self._look(view.image, view.image.topics)
        if self._is_needed.is_set():
            await self._started()
        self._is_late = True

    async def run(self) -> None:
        """Start the parts once there is a diskless topic, then wait until cancelled."""
        unsubscribe = self._cluster.node.view.subscribe(self._look)
        try:
            self._look(self._cluster.node.view.image, self._cluster.node.view.image.topics)
            await self._is_needed.wait()
            await _import_at_last()
            with suppress(StoreUnavailable):  # The node is stopping.
                await self._started()
        finally:
            unsubscribe()
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Stop the parts in order; none is started any more."""
        async with self._starting:
            self._is_closed = True
        await self._stack.aclose()

    def _look(self, image: ClusterImage, names: Iterable[str]) -> None:
        if not self._is_needed.is_set() and any(_is_diskless(image, name) for name in names):
            self._is_needed.set()

    async def _check_store(self) -> None:
        """Make sure that the object store can have chains, as ``NodeChain`` does."""
        chain = await self._started()
        await chain.check_store()

    async def _started(self) -> NodeChain:
        """Start the parts if they are not yet. Raises ``StoreUnavailable`` once it is closed."""
        async with self._starting:
            if self._is_closed:
                raise StoreUnavailable("the node is stopping")
            if self._chain is None:
                start = await imported(_load)
                self._chain = start(
                    self._settings,
                    self._stack,
                    self._cluster,
                    self._logs,
                    self._fetchers,
                    stop=self._stop,
                    serving=self._serving,
                )
                self._kept_notes.pass_on()
                if self._is_late:
                    self._enter_elected()
        return self._chain

    def _enter_elected(self) -> None:
        """Note elections from before the parts were started."""
        replicas = self._logs.replicas
        for replica in tuple(replicas.replicas()):
            if replica.is_diskless and not replica.is_leader:
                replicas.roles.unentered_lead.notify(replica)


async def _import_at_last() -> None:
    """Import the parts; try again if that fails, for example without free descriptors."""
    while True:
        try:
            await imported(_load)
        except (OSError, ImportError):
            logger.exception("modules of diskless topics cannot be imported, will retry")
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return


def _load() -> Callable[..., NodeChain]:
    from tidelog_node.assembly.diskless import start_diskless

    return start_diskless


def _is_diskless(image: ClusterImage, name: str) -> bool:
    """Return whether the topic is diskless by its settings, or has partitions in chains."""
    topic = image.topic(name)
    if topic is None:
        return False
    partitions = image.partitions(name)
    return wants_diskless(topic) or any(one.is_diskless or one.wal for one in partitions)
