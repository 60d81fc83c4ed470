"""The node's interface to the tier: remote reads, and two background loops.

    every remote.task.interval.ms           copy sealed segments        (copy_loop, copier)
    every log.retention.check.interval.ms   remove expired ones         (retention_loop, retention)

Both visit only partitions that may need work, from the changes that ``LogChanges`` reports. Under a
led partition's lock one piece of work runs at a time. A partition with failures is retried after
growing delays and delays no other (``attempts``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from tidelog_core.errors import TidelogError
from tidelog_core.log_format import TEXT
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.model import TopicPartition
from tidelog_core.objects.location import make_local_folder, parse_object_location
from tidelog_core.retention.clock_rule import Witness
from tidelog_core.tier.contents import read_tier
from tidelog_core.tier.store_identity import StoreIdentity
from tidelog_core.tier_compaction.choice import compacted_end
from tidelog_core.turns import Turn

from tidelog_node.inspection.inspector import BatchInspector
from tidelog_node.node_context import NodeContext
from tidelog_node.tier.attempts import Attempts
from tidelog_node.tier.client import TierClient
from tidelog_node.tier.copier import Copier
from tidelog_node.tier.copy_loop import Backlog, CopyLoop
from tidelog_node.tier.history import TierHistory
from tidelog_node.tier.index_cache import IndexCache
from tidelog_node.tier.led_partition import ReplicaSource, TieredReplica
from tidelog_node.tier.partitions import TieredPartitions
from tidelog_node.tier.remote_log import OpenChunks, RemoteLog, RemoteReader
from tidelog_node.tier.retention import Retention, adopt_log_start
from tidelog_node.tier.retention_loop import RetentionLoop
from tidelog_node.tier.swap_watch import SwapWatch
from tidelog_node.tier.worker_command import WorkerCommand

logger = logging.getLogger(__name__)

AHEAD_CACHE_SHARE = 4  # one reader's read-ahead takes at most this part of the cache


class TierService:
    """Copies to, reads from and cleans up the tier. For the node's event loop."""

    def __init__(
        self,
        node: NodeContext,
        *,
        replicas: ReplicaSource,
        inspector: BatchInspector,
        objects_url: str,
        socket: Path,
        cache_dir: Path,
        log_format: str = TEXT,
        honour_erasures: Callable[[], Awaitable[None]],
        holds_files: Callable[[TieredReplica], bool] = lambda _: True,
    ) -> None:
        """``honour_erasures`` evicts tiered local segments whose records are being erased.

        ``holds_files`` says whether a replica whose log is not open is worth opening.
        """
        self._node = node
        self._replicas = replicas
        self._honour_erasures = honour_erasures
        self._objects_url = objects_url
        # They use the same object store, and are none of this service.
        self.other_workers: list[Callable[[], Awaitable[Mapping[str, Any] | None]]] = []
        config = node.config()
        self._identity = StoreIdentity.at(objects_url, node.store, lambda: node.view.image)
        self.client = TierClient(
            WorkerCommand(
                socket=socket,
                objects=objects_url,
                cache_dir=cache_dir,
                node_config=config,
                log_format=log_format,
            ),
            tracer=node.tracer,
            health=node.health,
            identity=self._identity,
        )
        self._indexes = IndexCache(self.client, executor=node.executor)
        self.history = TierHistory(store=node.store, indexes=self._indexes, view=node.view)
        self._inspector = inspector
        self._open_chunks = OpenChunks()
        self._chunk_bytes = config.remote_chunk_bytes
        self._ahead_chunks_max = min(
            config.remote_fetch_concurrency,
            config.remote_cache_bytes // config.remote_chunk_bytes // AHEAD_CACHE_SHARE,
        )
        self._partitions = TieredPartitions(replicas=replicas, view=node.view, reader=self._reader)
        self._attempts = Attempts()
        self.suspected = self._attempts.suspected
        self._copier = Copier(
            node,
            client=self.client,
            has_own_clock=parse_object_location(objects_url).has_own_clock,
        )
        self._copying = CopyLoop(
            partitions=self._partitions,
            attempts=self._attempts,
            copier=self._copier,
            client=self.client,
            config=config,
            honour_erasures=honour_erasures,
        )
        self._retention = Retention(
            node, copier=self._copier, client=self.client, inspector=inspector
        )
        self._retaining = RetentionLoop(
            node,
            replicas=replicas,
            partitions=self._partitions,
            attempts=self._attempts,
            copier=self._copier,
            retention=self._retention,
            client=self.client,
            open_chunks=self._open_chunks,
            holds_files=holds_files,
            interval_s=config.log_retention_check_interval_ms / 1000,
        )
        self._swaps = SwapWatch(
            view=node.view, partitions=self._partitions, on_swapped=self._retaining.on_swapped
        )
        self._loops: list[asyncio.Task[None]] = []
        self._unsubscribe: Callable[[], None] | None = None
        self._deleted_topics: frozenset[UUID] = frozenset()  # as last seen

    async def start(self) -> None:
        """Start the loops. The worker starts when it is first needed."""
        self.client.start()
        self._unsubscribe = self._node.view.subscribe(self._on_image)
        await self._honour_erasures()  # before any of the erased records is served
        self._loops = [
            asyncio.create_task(self._copying.run(), name="tier copier"),
            asyncio.create_task(self._retaining.run(), name="retention"),
            asyncio.create_task(self._make_folder(), name="object store folder"),
        ]

    async def close(self) -> None:
        """Stop everything; unfinished work is continued or cleaned up after a restart."""
        if self._unsubscribe is not None:
            self._unsubscribe()
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self._copying.close()
        await self._swaps.close()
        await self._indexes.close()
        await self.client.close()

    def nudge(self) -> None:
        """Start copies now instead of at the next interval."""
        self._copying.nudge()

    async def apply_retention(self) -> float:
        """Apply retention to all partitions; return the seconds until the next visit may be due."""
        return await self._retaining.apply()

    def remote_log(self, replica: TieredReplica) -> RemoteLog:
        """Return the tiered part of a partition that this node leads or follows.

        Raises ``NotLeaderOrFollower`` if it does neither.
        """
        return self._partitions.remote_log(replica)

    async def compacted_up_to(self, replica: TieredReplica) -> int | None:
        """Return the offset below which no key has two records in the tier.

        ``None``: the partition has no segment in the tier and none may be copied. Raises the
        store's errors.
        """
        number = replica.partition.partition
        contents = await read_tier(self._node.store, replica.topic_id, number)
        if not contents and not replica.config.remote_storage_enable:
            return None
        return compacted_end(contents.finished)

    @contextlib.asynccontextmanager
    async def holding_copies(self, replica: TieredReplica) -> AsyncIterator[None]:
        """Prevent copies of the partition's segments while they are replaced."""
        led = self._partitions.get_led((replica.topic_id, replica.partition.partition))
        if led is None:
            yield
            return
        async with led.lock:
            yield
            if led.under_way is not None:
                # Continued, it could store one object from the old bytes and one from the new.
                led.reset()

    def witnesses(self) -> Iterable[Witness]:
        """Return the bucket's time at the last copy."""
        return () if self._copier.witness is None else (self._copier.witness,)

    async def backlog(self) -> Backlog:
        """Return the sealed segments of led logs that are yet to be tiered."""
        return await self._copying.backlog()

    async def worker_status(self) -> Mapping[str, Any] | None:
        """Return the worker's counters, ``None`` if none runs or it does not answer."""
        return await self.client.status_if_running()

    async def worker_statuses(self) -> list[Mapping[str, Any]]:
        """Return the counters of all workers that run and answer, also of those for chains."""
        found = [await status() for status in (self.worker_status, *self.other_workers)]
        return [one for one in found if one is not None]

    async def stored_bytes(self, *, readings_max: int) -> dict[str, int]:
        """Return the bytes of tiered segments of the partitions led here, by topic.

        Segments that are not in memory yet are read, of ``readings_max`` partitions at most; the
        others count when it is called again.
        """
        turn, sizes = Turn(), dict[str, int]()
        for replica in tuple(self._replicas.replicas()):
            await turn.step()
            if not self._partitions.leads(replica) or not replica.config.remote_storage_enable:
                continue
            remote, topic = self._partitions.lead(replica).remote, replica.partition.topic
            if remote.size_bytes is None and readings_max > 0:
                readings_max -= 1
                with contextlib.suppress(TidelogError):
                    await remote.segments()
            sizes[topic] = sizes.get(topic, 0) + (remote.size_bytes or 0)
        return sizes

    @property
    def status(self) -> Mapping[str, int]:
        """Counters for operators and metrics."""
        return {
            "worker_is_connected": int(self.client.is_connected),
            "worker_restart_count": self.client.restart_count,
            "copied_segment_count": self._copier.copied_count,
            "copying_partition_count": self._copying.copying_count,
            "failing_partition_count": self._partitions.failing_count,
            "evicted_bytes": self._copier.evicted_bytes,
            "deleted_segment_count": self._retention.deleted_count,
            "index_cache_bytes": self._indexes.size_bytes,
        }

    def on_changed(self, replicas: Collection[TieredReplica]) -> None:
        """Schedule the work on partitions whose logs have changed."""
        first_wait_s = self._retaining.times.wait_s
        for replica in replicas:
            if replica.is_dropped:
                self._copying.forget(replica)
                self._retaining.times.forget(replica)
            elif replica.is_follower:
                self._retaining.on_followed_changed(replica)
            elif replica.is_leader:
                self._copying.on_led_changed(replica)
                self._retaining.on_led_changed(replica)
        if self._retaining.times.wait_s < first_wait_s:
            self._retaining.wake()

    def _on_image(self, image: ClusterImage, changed_topics: frozenset[str]) -> None:
        if image.deleted_topics.keys() - self._deleted_topics:
            self._retaining.wake()
        if changed_topics:
            self._partitions.may_lead_less = True
        for topic_id in self._deleted_topics - image.deleted_topics.keys():
            self._copier.forget_topic(topic_id)  # Its clean-up is done.
        self._deleted_topics = frozenset(image.deleted_topics)
        for name in changed_topics:
            self._adopt_log_starts(image, name)

    def _adopt_log_starts(self, image: ClusterImage, name: str) -> None:
        """Advance the log starts of led partitions that another process has advanced."""
        first = self._replicas.get(TopicPartition(name, 0))
        if first is not None:
            first.note_changed()  # Its leader persists the topic's settings in the bucket.
        for partition in image.partitions(name):
            if partition.leader != self._node.broker_id:
                continue
            replica = self._replicas.get(TopicPartition(name, partition.partition))
            if replica is None or replica.topic_id != partition.topic_id or not replica.is_leader:
                continue
            try:
                adopt_log_start(replica, partition.log_start_offset)
            except (TidelogError, OSError) as error:
                replica.note_changed()  # Retention tries again.
                logger.warning(
                    "log start not advanced",
                    extra={"partition": str(replica.partition), "reason": str(error)},
                )

    async def _make_folder(self) -> None:
        """Make a folder for the objects of a new cluster, for those that only read.

        Not of a cluster that has a store: a file system that is not mounted would look new.
        """
        try:
            if self._identity is not None and not await self._identity.is_known():
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(
                    self._node.executor, make_local_folder, self._objects_url
                )
        except (TidelogError, OSError) as error:
            logger.error("object store's folder not made", extra={"reason": str(error)})

    def _reader(self) -> RemoteReader:
        return RemoteReader(
            cluster_id=self._node.view.image.cluster_id,
            store=self._node.store,
            client=self.client,
            indexes=self._indexes,
            open_chunks=self._open_chunks,
            executor=self._node.executor,
            inspector=self._inspector,
            chunk_bytes=self._chunk_bytes,
            ahead_chunks_max=self._ahead_chunks_max,
        )
