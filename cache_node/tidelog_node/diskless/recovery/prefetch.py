"""Prefetches the objects of a doubted leader, so that its heir has them when it is elected.

    a port refuses, or a broker has been silent for long
        → its partitions that this node would lead → list their chains → read where their tiers end
        → read indexes and footers of the chains, then the slices that the local logs lack,
          except those of long tails
        → at the same time, read the chains that have had partitions of theirs (``SuccessorSearch``)

The heir has to wait during that time anyway. The prefetch calls the functions of the recovery and
drops their results; ``RangeCache`` keeps the bytes that they read, and ``ListingCache`` the listed
objects that are known to have existed. The recovery begins again after the seal, lists the other
objects, and reads from the store all that is not cached.

A wrong guess costs requests, so there are limits: by bytes, by partitions, and by time for a broker
that is doubted again and again. The prefetch ends when the recovery begins to read, or when a third
node leads one of the partitions. It goes on while this node is elected and seals the chain, which
takes several answers of the store. The caches are emptied when the doubt is over, or after a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Container, Generator, Iterable, Mapping

from tidelog_core.diskless.chain.store import ChainStore, ListedChain
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.errors import CorruptObject, ObjectNotFound, TidelogError
from tidelog_core.metadata.epoch_chains import ChainName, cut_tiered
from tidelog_core.metadata.records import Partition
from tidelog_core.model import TopicPartition
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.keys import segment_keys
from tidelog_core.turns import Turn
from tidelog_core.waiting import wait_and_clear

from tidelog_node.diskless.recovery.chain_slices import (
    StoredObject,
    StoredSlice,
    WantedSlices,
    find_slices,
    list_chains,
    log_of,
)
from tidelog_node.diskless.recovery.concurrent_calls import for_each
from tidelog_node.diskless.recovery.deferred_fills import is_long, slices_to_replay
from tidelog_node.diskless.recovery.listing_cache import ListingCache
from tidelog_node.diskless.recovery.object_reads import plan_reads, waves
from tidelog_node.diskless.recovery.range_cache import NoRoom, RangeCache
from tidelog_node.diskless.recovery.range_reader import RangeReader
from tidelog_node.diskless.recovery.slice_reads import SlicePlace, read_runs
from tidelog_node.membership.membership import Membership
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica
from tidelog_node.tier.history import TierHistory, tier_end

logger = logging.getLogger(__name__)

KEPT_SECONDS = 30.0  # then an heir has long read it, or nobody needs it
AGAIN_SECONDS = 10.0  # between two of one broker
PARTITIONS_MAX = 500  # of one broker: each costs a reading of its tier's items
PARTITIONS_AT_ONCE_MAX = 16
READS_AT_ONCE_MAX = 32


class Prefetch:
    """Fills ``RangeCache``. ``run`` is one task of the node."""

    def __init__(
        self,
        node: NodeContext,
        *,
        membership: Membership,
        replica_of: Callable[[TopicPartition], Replica | None],
        objects: ObjectStore,
        ranges: RangeCache,
        history: TierHistory,
        read_successors: Callable[[ChainName], Awaitable[None]] | None = None,
        listings: ListingCache | None = None,
    ) -> None:
        """``read_successors`` prefetches the chains that have had partitions of a chain."""
        self._read_successors = read_successors
        self.listings = listings or ListingCache()
        self._node = node
        self._membership = membership
        self._replica_of = replica_of
        self._objects = objects
        self.ranges = ranges  # what was read
        self._history = history
        self._stir = asyncio.Event()
        self._doubted = frozenset[int]()  # as last seen
        self._began_s: dict[int, float] = {}  # the loop's time at which a broker was last read for
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading: dict[int, asyncio.Task[None]] = {}  # by the broker that is read for

    def end_for(self, broker_ids: Iterable[int]) -> None:
        """Stop the prefetch for these brokers' chains: their recovery begins."""
        for broker_id in broker_ids:
            reading = self._reading.get(broker_id)
            if reading is not None:
                reading.cancel()

    async def run(self) -> None:
        """Prefetch until cancelled."""
        unsubscribe = self._membership.doubts.subscribe(self._stir.set)
        try:
            while True:
                await wait_and_clear(self._stir, None)
                before, self._doubted = self._doubted, self._membership.doubted
                for broker_id in sorted(self._doubted - before):
                    self._begin(broker_id)
        finally:
            unsubscribe()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, broker_id: int) -> None:
        now_s = asyncio.get_running_loop().time()
        began_s = self._began_s.get(broker_id)
        if began_s is not None and now_s - began_s < AGAIN_SECONDS:
            return
        self._began_s[broker_id] = now_s
        task = asyncio.create_task(self._attend(broker_id), name="reading ahead")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _probable(self, broker_id: int) -> dict[TopicPartition, Partition]:
        """Return a limited number of the broker's diskless partitions that this node would lead."""
        membership, image = self._membership, self._node.view.image
        live = membership.live_brokers(image)
        found: dict[TopicPartition, Partition] = {}
        turn = Turn()
        for topic in image.topics:
            await turn.step()
            for one in image.partitions(topic):
                if one.leader != broker_id or not one.is_diskless or not one.wal:
                    continue
                if len(found) == PARTITIONS_MAX:
                    return found
                if membership.elector.would_inherit(one, membership.peers, live):
                    found[TopicPartition(topic, one.partition)] = one
        return found

    async def _attend(self, broker_id: int) -> None:
        """Prefetch for the broker's heir, and keep the caches while they may be of use."""
        wanted = await self._probable(broker_id)
        if not wanted:
            self._began_s.pop(broker_id, None)
            return
        changed = asyncio.Event()
        ends = [
            self._membership.doubts.subscribe(changed.set),
            self._node.view.subscribe(lambda *_: changed.set()),
        ]
        reading = asyncio.create_task(self._read(broker_id, wanted))
        self._reading[broker_id] = reading
        heirs = (broker_id, self._membership.broker_id)
        try:
            async with asyncio.timeout(KEPT_SECONDS):
                while broker_id in self._membership.doubted:
                    if not self._are_led_by(heirs, wanted):
                        reading.cancel()
                    await wait_and_clear(changed, None)
        except TimeoutError:
            pass
        finally:
            for unsubscribe in ends:
                unsubscribe()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            self._reading.pop(broker_id, None)
            self.ranges.drop(broker_id)
            self.listings.drop(broker_id)

    def _are_led_by(
        self, broker_ids: Container[int], wanted: Mapping[TopicPartition, Partition]
    ) -> bool:
        records = map(self._node.view.image.partition, wanted)
        return all(one is not None and one.leader in broker_ids for one in records)

    async def _read(self, broker_id: int, wanted: Mapping[TopicPartition, Partition]) -> None:
        before_bytes, read = self.ranges.size_bytes, self.ranges.keep_for(broker_id)
        reason = ""
        try:
            await self._read_all(broker_id, wanted, read)
        except NoRoom:
            reason = "as much is kept as may be"
        except (TidelogError, OSError) as error:
            reason = str(error)
        except Exception:
            # Any failure: the recovery reads from the store if the cache lacks something.
            logger.exception("reading ahead broke")
        logger.info(
            "objects of a doubted leader read ahead",
            extra={
                "broker_id": broker_id,
                "count": len(wanted),
                "size_bytes": self.ranges.size_bytes - before_bytes,
                "reason": reason,
            },
        )

    async def _read_all(
        self, broker_id: int, wanted: Mapping[TopicPartition, Partition], read: RangeReader
    ) -> None:
        """Read all that a takeover reads. Raises ``NoRoom``, and the store's errors."""
        look = self._read_successors
        last = {one.wal[-1].chain for one in wanted.values()} if look is not None else set()
        looks = [asyncio.ensure_future(look(chain)) for chain in sorted(last) if look is not None]
        try:
            await self._read_tails(broker_id, wanted, read)
            await asyncio.gather(*looks)
        finally:
            for task in looks:
                task.cancel()
            await asyncio.gather(*looks, return_exceptions=True)

    async def _read_tails(
        self, broker_id: int, wanted: Mapping[TopicPartition, Partition], read: RangeReader
    ) -> None:
        """Read all that the recovery reads. Raises ``NoRoom``, and the store's errors."""
        cluster_id = self._node.view.image.cluster_id
        chains = ChainStore(self._objects, cluster_id, read=read)
        names = sorted({entry.chain for one in wanted.values() for entry in one.wal})
        listings = await list_chains(chains, names)
        local_ends: dict[PartitionName, int] = {}
        needs: dict[PartitionName, WantedSlices] = {}

        async def begin(partition: TopicPartition) -> None:
            record = wanted[partition]
            name = PartitionName(record.topic_id, record.partition)
            start = await self._tier_end(partition, record, read)
            needs[name] = WantedSlices(cut_tiered(record.wal, start), start)
            local_ends[name] = self._local_end(partition)

        await for_each(wanted, begin, at_once_max=PARTITIONS_AT_ONCE_MAX)
        found = await find_slices(chains, needs, {}, listings)
        for (chain, _), footer in found.footers.items():
            known_end = footer.header.committed_end
            self.listings.keep(broker_id, chain, listings[chain], known_end=known_end)
        missing: dict[PartitionName, list[StoredSlice]] = {}
        for name, need in needs.items():
            with contextlib.suppress(CorruptObject):  # The recovery says what is wrong.
                slices, _ = log_of(name, need, found.slices[name], cluster_id=cluster_id)
                missing[name] = [one for one in slices if one.end_offset > local_ends[name]]
        # Logs that begin at the ends of their tails need some footers alone before they are led.
        late = {
            name: slices_to_replay(missing.pop(name), need.start_offset, found.producers.get(name))
            for name, need in needs.items()
            if name in missing and local_ends[name] <= need.start_offset and is_long(missing[name])
        }
        places = dict.fromkeys(read.place for read in plan_reads(late))
        left = [place for place in places if place not in found.footers]
        await _read_footers(chains, listings, left)
        await self._read_slices(_ranges(missing, cluster_id), read)

    async def _read_slices(self, parts: Generator[tuple[str, int, int]], read: RangeReader) -> None:
        """Read and keep these ranges, until there is no more room. Raises the store's errors."""

        async def read_one(part: tuple[str, int, int]) -> None:
            if self.ranges.has(*part):
                return
            try:
                await read(*part)
            except NoRoom:
                parts.close()  # What is being read is still kept.

        await for_each(parts, read_one, at_once_max=READS_AT_ONCE_MAX)

    async def _tier_end(
        self, partition: TopicPartition, record: Partition, read: RangeReader
    ) -> int:
        """Return the end of the tier; read the index from which an empty log begins there."""
        segments = await self._history.segments(record.topic_id, record.partition)
        end = tier_end(segments, record.log_start_offset)
        if end is None:
            return record.log_start_offset
        last = segments.ending_at(end.offset)
        if last is not None and self._local_end(partition) < end.offset:
            keys = segment_keys(self._node.view.image.cluster_id, partition.topic, last)
            await read(keys.index, 0, last.index_size_bytes)
        return end.offset

    def _local_end(self, partition: TopicPartition) -> int:
        """Return the end of the local log, 0 if there is none yet."""
        replica = self._replica_of(partition)
        log = None if replica is None else replica.opened_log
        return 0 if log is None else log.log_end_offset


async def _read_footers(
    chains: ChainStore,
    listings: Mapping[ChainName, ListedChain],
    places: Iterable[StoredObject],
) -> None:
    """Read and keep the footers of these objects. Raises the store's errors."""
    listed = {
        StoredObject(chain, one.sequence): one
        for chain, listing in listings.items()
        for one in listing.objects
    }

    async def read_footer(place: StoredObject) -> None:
        with contextlib.suppress(CorruptObject, ObjectNotFound):
            await chains.footer(place.chain, listed[place])

    left = (place for place in places if place in listed)
    await for_each(left, read_footer, at_once_max=READS_AT_ONCE_MAX)


def _ranges(
    missing: Mapping[PartitionName, list[StoredSlice]], cluster_id: str
) -> Generator[tuple[str, int, int]]:
    """Yield the ranges to read, in the order in which a recovery needs them."""
    sizes = {name: sum(one.size_bytes for one in slices) for name, slices in missing.items()}
    for wave in waves(sizes):
        for read in plan_reads({name: missing[name] for name in wave}):
            key = wal_key(cluster_id, read.place.chain, read.place.sequence)
            places = [
                SlicePlace(one.position, one.size_bytes, one.crc32c)
                for slices in read.slices.values()
                for one in slices
            ]
            for start, end in read_runs(places):
                yield key, start, end
