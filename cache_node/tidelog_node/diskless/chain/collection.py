"""Deletes objects of the node's chain once the tier has all of their records.

An object holds records of many partitions, and stays until the last of them is tiered. Only sealed
segments are tiered, so a partition with few records would keep large objects. The active segment
of a led diskless partition is therefore sealed when it is older than ``diskless.wal.max.age.ms``.

What the tier has is known of led partitions. Of those that have left the chain, the metadata store
is asked, some at a time. A deleted topic's tombstone may be gone before the next visit, so all that
this node sees are remembered. What is left of a chain when its node has gone is for the scrub,
which collects sealed chains.

A log start counts only once it is older than producers repeat a batch. Before, an heir must find
the producers of what was deleted, and without checkpoints only the tier and the chains have them.
The same holds of what earlier leaders have: once another one has led for that long, nobody needs
it. And the bucket must say where the log starts, because a restoration would take what is deleted
here for lost, or begin again at offset 0.

The last object of a chain always stays. If nothing follows it for as long as that age, and the tier
has its records, the chain gets an object without any: then no copy of records outlives its time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from uuid import UUID

from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.collection.collection import UnneededEnds
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.errors import CorruptItem, ObjectNotFound, StorageError, TidelogError
from tidelog_core.log.local_log import LocalLog
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.records import Partition, deleted_topic_key, partition_key
from tidelog_core.metadata.store import ItemKey
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.contents import read_tiered_end
from tidelog_core.tier.keys import log_start_key
from tidelog_core.turns import Turn

from tidelog_node.diskless.chain.owned_chain import OwnedChain
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica

logger = logging.getLogger(__name__)

INTERVAL_SECONDS_MAX = 30.0
VISITS_PER_AGE = 10  # of the age at which segments are sealed
READ_AT_ONCE_MAX = 100  # partitions that have left, in one visit
REPEATED_SECONDS = 600.0  # longer than producers repeat a batch


@dataclass(slots=True)
class _Purge:
    """A log start of a led partition that is beyond the end of its tier."""

    topic: str
    log_start_offset: int
    since_s: float  # the loop's time at which it was seen first, or looked for in the bucket last
    is_published: bool = False  # the bucket has it


class ChainCollection:
    """Collects the current chain of the node. For the event loop; ``run`` is one task."""

    def __init__(
        self,
        node: NodeContext,
        *,
        replicas: Callable[[], Iterator[Replica]],
        chain: Callable[[], OwnedChain | None],
        chains: ChainStore,
        objects: ObjectStore,
    ) -> None:
        self._node = node
        self._objects = objects
        self._replicas = replicas
        self._chain = chain
        self._chains = chains
        self._left_ends: dict[PartitionName, int] = {}  # of partitions that are not led here
        # Their leader epochs, and the loop's time at which each was seen first.
        self._left_epochs: dict[PartitionName, tuple[int, float]] = {}
        self._purges: dict[PartitionName, _Purge] = {}
        self._deleted_topics: set[UUID] = set()  # that the chain may have records of
        self._idle_end = -1  # the chain's end, since when it has nothing that is needed
        self._idle_since_s = 0.0

    async def run(self) -> None:
        """Visit the partitions and the chain until cancelled."""
        unsubscribe = self._node.view.subscribe(self.note_image)
        try:
            while True:
                await asyncio.sleep(self._interval_s())
                await self._try_visit()
        finally:
            unsubscribe()

    def note_image(self, image: ClusterImage, _: frozenset[str]) -> None:
        """Remember the topics that were deleted: their tombstones go."""
        self._deleted_topics |= image.deleted_topics.keys()

    async def _try_visit(self) -> None:
        try:
            await self.visit()
        except TidelogError as error:
            logger.warning(
                "objects of the chain are not collected yet, will retry",
                extra={"reason": str(error)},
            )
        except Exception:
            logger.exception("collection of the chain broke, will retry")

    async def visit(self) -> None:
        """Seal old segments, then delete objects that are tiered. Raises the stores' errors."""
        led = await self._visit_led()
        chain = self._chain()
        if chain is None or chain.is_deposed or not len(chain.committed):
            return
        names = chain.committed.names()
        await self._read_left(names - led.keys())
        await self._look_for_log_starts(names)
        published = [(name, one) for name, one in self._purges.items() if one.is_published]
        led |= {name: one.log_start_offset for name, one in published}
        unneeded = UnneededEnds(self._left_ends | led, deleted_topics=self._deleted_topics)
        while not chain.is_deposed and (found := chain.committed.collectable(unneeded)):
            await self._chains.delete(chain.name, found)
            chain.committed.on_deleted(found)
            if not chain.is_deposed:
                traffic = self._node.counters.chain
                traffic.collected_count += len(found)
                traffic.kept_count = len(chain.committed)
        self._put_empty_if_idle(chain)

    def _put_empty_if_idle(self, chain: OwnedChain) -> None:
        if chain.committed.names() or not chain.committed.last_has_records:
            return
        now_s = asyncio.get_running_loop().time()
        if self._idle_end != chain.committed_end:
            self._idle_end, self._idle_since_s = chain.committed_end, now_s
        elif now_s - self._idle_since_s >= self._node.config().diskless_wal_max_age_ms / 1000:
            chain.put_empty_object()

    def _interval_s(self) -> float:
        age_ms = self._node.config().diskless_wal_max_age_ms
        return min(INTERVAL_SECONDS_MAX, age_ms / 1000 / VISITS_PER_AGE)

    async def _visit_led(self) -> dict[PartitionName, int]:
        """Seal old segments of led partitions; return where their tiers end."""
        turn = Turn()
        age_ms = self._node.config().diskless_wal_max_age_ms
        ends: dict[PartitionName, int] = {}
        purges: dict[PartitionName, _Purge] = {}
        for replica in tuple(self._replicas()):
            await turn.step()
            log = replica.opened_log
            if not replica.is_diskless or not replica.is_leader or log is None or log.is_offline:
                continue
            _roll(replica, log, age_ms)
            name = replica.name
            ends[name] = log.copied_end
            if log.log_start_offset > max(log.copied_end, 0):
                purges[name] = self._purge_of(name, replica.partition.topic, log.log_start_offset)
        self._purges = purges
        return ends

    def _purge_of(self, name: PartitionName, topic: str, log_start_offset: int) -> _Purge:
        known = self._purges.get(name)
        if known is not None and known.log_start_offset == log_start_offset:
            return known
        return _Purge(topic, log_start_offset, asyncio.get_running_loop().time())

    async def _look_for_log_starts(self, names: Collection[PartitionName]) -> None:
        """Ask the bucket for the log starts that are old enough. Raises the store's errors."""
        cluster_id, now_s = self._node.view.image.cluster_id, asyncio.get_running_loop().time()
        due = [
            (name, one)
            for name, one in self._purges.items()
            if name in names and not one.is_published and now_s - one.since_s >= REPEATED_SECONDS
        ]
        for name, one in due[:READ_AT_ONCE_MAX]:
            one.since_s = now_s
            key = log_start_key(cluster_id, one.topic, *name, one.log_start_offset)
            with contextlib.suppress(ObjectNotFound):
                await self._objects.head(key)
                one.is_published = True

    async def _read_left(self, names: Collection[PartitionName]) -> None:
        """Read where the tiers of some partitions end that are led elsewhere, or are deleted."""
        self._left_ends = {name: end for name, end in self._left_ends.items() if name in names}
        self._left_epochs = {name: one for name, one in self._left_epochs.items() if name in names}
        # One that is in the image may have an object in flight.
        there = self._node.view.image.deleted_topics
        self._deleted_topics = {
            topic_id for topic_id in self._deleted_topics if topic_id in there
        } | (self._deleted_topics & {name.topic_id for name in names})
        left = {name for name in names if name.topic_id not in self._deleted_topics}
        # Those that were read longest ago come first.
        unread = [name for name in left if name not in self._left_ends]
        some = [*unread, *(name for name in self._left_ends if name in left)][:READ_AT_ONCE_MAX]
        if not some:
            return
        keys: dict[ItemKey, PartitionName] = {partition_key(*name): name for name in some}
        tombs = {deleted_topic_key(name.topic_id): name.topic_id for name in some}
        items = await self._node.store.get_many({*keys, *tombs})
        self._deleted_topics |= {topic_id for key, topic_id in tombs.items() if key in items}
        for key, name in keys.items():
            self._left_ends.pop(name, None)
            self._left_ends[name] = -1
            # An item that cannot be read keeps the objects of its own partition alone.
            with contextlib.suppress(CorruptItem):
                if (item := items.get(key)) is not None:
                    self._left_ends[name] = await self._stored_end(Partition.from_item(item))

    async def _stored_end(self, partition: Partition) -> int:
        # No heir looks below the first chain of the item, because the leader cuts the tiered part
        # off. The tier itself does not show that part if it was purged before it was read here.
        wal = partition.readable_wal if self._is_settled(partition) else partition.wal
        first = wal[0].first_offset if wal else -1
        start = partition.log_start_offset
        where = partition.topic_id, partition.partition
        end = await read_tiered_end(self._node.store, *where, start)
        return max(end if end > start else -1, first)

    def _is_settled(self, partition: Partition) -> bool:
        """Whether no producer repeats a batch any more that an earlier leader has taken."""
        name = PartitionName(partition.topic_id, partition.partition)
        now_s = asyncio.get_running_loop().time()
        epoch, since_s = self._left_epochs.get(name, (-1, now_s))
        if epoch != partition.leader_epoch:
            since_s = now_s
            self._left_epochs[name] = partition.leader_epoch, now_s
        return now_s - since_s >= REPEATED_SECONDS


def _roll(replica: Replica, log: LocalLog, age_ms: int) -> None:
    try:
        if log.maybe_roll(age_ms=age_ms):
            replica.note_changed()
    except StorageError as error:
        if not replica.note_failure(error):
            what = {"partition": str(replica.partition), "reason": str(error)}
            logger.error("segment could not be rolled", extra=what)
