"""A partition as the stores have it: its tiered segments, and its tail in chains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.tail.partition_tail import TailView
from tidelog_core.diskless.tail.reader import TailReader
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.errors import CorruptItem
from tidelog_core.metadata.epoch_chains import EpochChains
from tidelog_core.metadata.records import (
    Cluster,
    Partition,
    SegmentMeta,
    Topic,
    cluster_key,
    partition_key,
    segment_collection,
    topic_key,
)
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.model import TopicPartition
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.index_file import BatchTable
from tidelog_core.tier.stretches import Stretch, readable_stretches

from tidelog.errors import InvalidConfig, UnknownTopicOrPartition

CHUNK_SIZE_BYTES = 4 * 1024 * 1024
IDLE_SECONDS_MAX = 600.0  # without a load, after which a partition's tail is forgotten


class Piece(NamedTuple):
    """Whole batches of one object, and the offsets that are read from them."""

    key: str
    position: int  # bytes from the start of the object
    size_bytes: int
    start_offset: int
    end_offset: int  # exclusive
    aborted: tuple[tuple[int, int], ...] = ()  # (first offset, producer id)
    crc32c: int | None = None  # of the bytes; ``None``: only the batches have one
    base_offset: int | None = None  # of the first batch, if the headers lack offsets


@dataclass(frozen=True, slots=True)
class BucketLog:
    """A partition's log at one reading of the stores."""

    cluster_id: str
    partition: TopicPartition
    start_offset: int
    stretches: tuple[Stretch, ...]
    tail: TailView | None  # ``None``: it is not diskless, or chains are not read
    end_offset: int  # exclusive, for the isolation level

    def tail_pieces(self, start_offset: int, end_offset: int) -> Iterator[Piece]:
        """Yield the tail's slices that overlap ``[start_offset, end_offset)``."""
        if self.tail is None:
            return
        low = max(start_offset, self.tail.start_offset)
        for one in self.tail.slices.between(low, end_offset):
            start, end = max(one.base_offset, low), min(one.end_offset, end_offset)
            yield Piece(
                wal_key(self.cluster_id, one.chain, one.sequence),
                one.position,
                one.size_bytes,
                start,
                end,
                tuple(
                    (aborted.first_offset, aborted.producer_id)
                    for aborted in self.tail.aborted
                    if aborted.first_offset < one.end_offset
                    and aborted.last_offset >= one.base_offset
                ),
                one.crc32c,
                one.base_offset if one.is_reference else None,
            )


def segment_pieces(
    key: str, batches: BatchTable, start_offset: int, end_offset: int
) -> Iterator[Piece]:
    """Yield the ranges of a segment object to read for ``[start_offset, end_offset)``."""
    row = batches.row_of_offset(start_offset)
    while row < len(batches) and batches[row].base_offset < end_offset:
        first = batches[row]
        # At least one batch, and no more than the chunk's size unless it is larger.
        after = max(row + 1, batches.row_at_position(first.position + CHUNK_SIZE_BYTES))
        last = batches[after - 1]
        yield Piece(
            key,
            first.position,
            last.position + last.size_bytes - first.position,
            max(first.base_offset, start_offset),
            min(last.last_offset + 1, end_offset),
        )
        row = after


class LogLoader:
    """Loads logs. Chains are followed: a later load reads only their new objects."""

    def __init__(
        self,
        metadata: MetadataStore,
        objects: ObjectStore,
        *,
        is_read_committed: bool,
        is_tail_read: bool,
    ) -> None:
        self._metadata = metadata
        self._objects = objects
        self._is_read_committed = is_read_committed
        self._is_tail_read = is_tail_read
        self._tails: TailReader | None = None
        self._chains: dict[PartitionName, EpochChains] = {}  # of the partitions that are loaded
        self._loaded_s: dict[PartitionName, float] = {}

    async def load(self, partition: TopicPartition) -> BucketLog:
        """Return the log as it is now.

        A record that was acknowledged before is in it. Raises ``UnknownTopicOrPartition``,
        ``InvalidConfig`` for a store without a cluster, ``CorruptItem`` and ``CorruptObject``.
        """
        cluster_id = await self._cluster_id()
        topic = await self._topic(partition.topic)
        if topic is None or not 0 <= partition.partition < topic.partition_count:
            raise UnknownTopicOrPartition(f"there is no partition {partition}")
        name = PartitionName(topic.topic_id, partition.partition)
        # In this order: the item, its chains, segments, the log start. What a chain lacks by then
        # is tiered, and what the tier lacks is below the log start.
        chains: EpochChains = ()
        # Topics that were diskless still have the setting.
        if self._is_tail_read and "diskless.enable" in topic.configs:
            chains = await self._read_chains(cluster_id, name)
        items = await self._metadata.list(segment_collection(*name))
        item = await self._metadata.get(partition_key(*name))
        if item is None:
            raise UnknownTopicOrPartition(f"there is no partition {partition}")
        start_offset = Partition.from_item(item).log_start_offset
        segments = [SegmentMeta.from_item(segment) for segment in items]
        stretches = readable_stretches(segments, start_offset)
        tiered_end = max([start_offset, *(one.end_offset for one in stretches[-1:])])
        if not chains or self._tails is None:
            return BucketLog(cluster_id, partition, start_offset, stretches, None, tiered_end)
        tail = self._tails.view(name, tiered_end, chains, is_over_gaps=True)
        end_offset = tail.stable_offset if self._is_read_committed else tail.end_offset
        return BucketLog(cluster_id, partition, start_offset, stretches, tail, end_offset)

    async def partition_count(self, topic: str) -> int:
        """Return the topic's partition count. Raises as ``load``."""
        await self._cluster_id()
        found = await self._topic(topic)
        if found is None:
            raise UnknownTopicOrPartition.of_topic(topic, ())
        return found.partition_count

    async def _cluster_id(self) -> str:
        found = await self._metadata.get(cluster_key())
        if found is None:
            raise InvalidConfig(["metadata: the store has no cluster; check the url"])
        return Cluster.from_item(found).cluster_id

    async def _topic(self, name: str) -> Topic | None:
        item = await self._metadata.get(topic_key(name))
        return None if item is None else Topic.from_item(item)

    async def _read_chains(self, cluster_id: str, name: PartitionName) -> EpochChains:
        if self._tails is None:
            self._tails = TailReader(ChainStore(self._objects, cluster_id))
        item = await self._metadata.get(partition_key(*name))
        chains: EpochChains = ()
        if item is not None:
            with suppress(CorruptItem):  # It is read again for its log start, and reported.
                chains = Partition.from_item(item).readable_wal
        self._forget_idle()
        self._chains.pop(name, None)
        if chains:
            self._chains[name], self._loaded_s[name] = chains, monotonic()
            every = {one.chain for some in self._chains.values() for one in some}
            await self._tails.refresh(self._chains.keys(), every)
        return chains

    def _forget_idle(self) -> None:
        """Forget partitions that nobody loads any more: only a load drops their tiered records."""
        now_s = monotonic()
        for name, loaded_s in tuple(self._loaded_s.items()):
            if now_s - loaded_s > IDLE_SECONDS_MAX:
                del self._loaded_s[name]
                self._chains.pop(name, None)
