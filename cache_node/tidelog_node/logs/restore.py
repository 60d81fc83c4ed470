"""Restarts a log that has lost its files, at the offset where its tier ends.

The tier still has all earlier records. Records after the last tiered segment were only on the
lost disk. Their offsets may be given to other records, also if consumers have seen them;
consumers detect that by the leader epoch, which each start of the node raises (KIP-320).

Runs before the node serves, and only for partitions whose ISR is this node alone: otherwise
another node leads. The producers' state comes from the last segment's index object, so that a
batch sent again is recognized; if the object is missing or damaged, producers are treated as new.
The tier worker does not run yet, so this reads from the object store itself.

If the end of a lost log's tier cannot be read, the log must not begin: it would assign offsets of
the tier to other records. Nor while the object store is away or is another one, such as a folder
that is not mounted: batches that are sent again would be appended twice, and nobody would see it
later. The partition stays offline until the node is restarted; other partitions are served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from tidelog_core.errors import (
    CorruptItem,
    StorageError,
    StoreUnavailable,
    TidelogError,
    TierRewritten,
)
from tidelog_core.log.checkpoint import write_checkpoint
from tidelog_core.log.paths import LEADER_EPOCH_FILE, START_OFFSET_FILE
from tidelog_core.log.producers.producer_snapshots import snapshot_path
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Partition, SegmentMeta, Topic
from tidelog_core.metadata.store import ItemKey, MetadataStore
from tidelog_core.model import RESERVED_TOPICS, TopicPartition
from tidelog_core.objects.location import open_object_store
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.contents import read_tier
from tidelog_core.tier.index_file import IndexFile
from tidelog_core.tier.keys import segment_keys
from tidelog_core.tier.store_identity import StoreIdentity
from tidelog_core.tier.tiered_segments import TieredSegments

from tidelog_node.logs.directories import LogDirectories

logger = logging.getLogger(__name__)

PARTITIONS_AT_ONCE_MAX = 16
REWRITTEN_RETRY_S = 0.5  # before a tier that was rewritten during the reading is read again


class _Held(NamedTuple):
    partition: TopicPartition
    topic_id: UUID


class _Laid(NamedTuple):
    """A log that begins where its tier ends."""

    held: TopicPartition
    key: ItemKey  # of its partition
    directory: Path
    last: SegmentMeta  # of the tier


class UnrestoredLogs:
    """Logs that may be lost and must not be created, because their tier is not known."""

    def __init__(self, failed: Mapping[ItemKey, TidelogError], unread: Collection[ItemKey]) -> None:
        """``failed`` is by the partition's key; ``unread`` are keys of unreadable items."""
        self._failed = failed
        self._unread = unread

    def refusal(self, topic: Topic, partition: Partition) -> TidelogError | None:
        """Return the reason not to create the partition's log, ``None`` if it may be created.

        A diskless one may always begin empty: it is recovered from tier and chains before it is
        led.
        """
        if partition.is_diskless:
            return None
        key = partition.item_id
        if key in self._failed:
            return StorageError(f"its log is lost, and its tier not readable: {self._failed[key]}")
        if key in self._unread or topic.item_id in self._unread:
            return StorageError(
                "it has no log, and nobody could read whether it lost one when the node"
                " started: start it again"
            )
        return None


async def restore_logs(
    store: MetadataStore,
    view: ClusterView,
    directories: LogDirectories,
    *,
    broker_id: int,
    objects_url: str,
) -> UnrestoredLogs:
    """Restart every lost log that this node leads; return those that it could not restart.

    Those of diskless partitions are left to ``LogRecovery``.

    Raises ``StoreUnavailable`` of the metadata store.
    """
    slots = asyncio.Semaphore(PARTITIONS_AT_ONCE_MAX)
    laid: list[_Laid] = []
    failed: dict[ItemKey, TidelogError] = {}

    async def restore(held: _Held, partition: Partition) -> None:
        async with slots:
            if directories.has_log(held):
                return
            try:
                found = await _lay_start(store, directories, held, partition)
            except CorruptItem as error:
                failed[partition.item_id] = error
                logger.error(
                    "log lost and its tier cannot be read, its partition is offline",
                    extra={"partition": str(held.partition), "reason": str(error)},
                )
                return
            if found is not None:
                laid.append(_Laid(held.partition, partition.item_id, *found))

    unread = frozenset(view.image.unreadable)
    # If the store fails for several logs, the first failure is raised; the rest would add nothing.
    await asyncio.gather(*(restore(*one) for one in _led_alone(view.image, broker_id)))
    if laid:
        failed |= await _lay_all_producers(laid, store, view, objects_url)
    return UnrestoredLogs(failed, unread)


def _led_alone(image: ClusterImage, broker_id: int) -> Iterator[tuple[_Held, Partition]]:
    """Yield the partitions that the node leads and whose only ISR member it is.

    Without diskless ones.
    """
    for name in image.topics:
        if name in RESERVED_TOPICS:
            continue
        for partition in image.partitions(name):
            is_alone = partition.leader == broker_id and partition.isr == (broker_id,)
            if is_alone and not partition.is_diskless:
                held = _Held(TopicPartition(name, partition.partition), partition.topic_id)
                yield held, partition


async def _lay_all_producers(
    laid: Sequence[_Laid], store: MetadataStore, view: ClusterView, objects_url: str
) -> dict[ItemKey, TidelogError]:
    """Write the producers of these logs; return the failures that pass, by the partition's key."""
    slots = asyncio.Semaphore(PARTITIONS_AT_ONCE_MAX)
    failed: dict[ItemKey, TidelogError] = {}
    # A folder that is missing does not keep the node down.
    objects = open_object_store(objects_url, may_be_new=True)

    async def lay_producers(one: _Laid) -> None:
        async with slots:
            key = segment_keys(view.image.cluster_id, one.held.topic, one.last).index
            try:
                await _lay_producers(objects, key, one.directory, one.last.end_offset)
            except StoreUnavailable as error:
                failed[one.key] = error

    try:
        identity = StoreIdentity.at(objects_url, store, lambda: view.image)
        if identity is not None:
            await identity.check(objects)
        async with asyncio.TaskGroup() as group:
            for one in laid:
                group.create_task(lay_producers(one))
    except TidelogError as error:  # The store is away, or is not the cluster's.
        failed = {one.key: error for one in laid}
    finally:
        await objects.close()
    return failed


async def _lay_start(
    store: MetadataStore, directories: LogDirectories, held: _Held, partition: Partition
) -> tuple[Path, SegmentMeta] | None:
    """Create the empty log at the tier's end; return its directory and the last segment.

    ``None`` if nothing is tiered. Raises ``CorruptItem`` and the store's errors.
    """
    segments = await _read_segments(store, held, partition)
    end_offset = segments.tiered_end(partition.log_start_offset)
    last = segments.ending_at(end_offset)
    if end_offset == partition.log_start_offset or last is None:
        return None
    directory = directories.claim(held.partition, held.topic_id)
    _write_checkpoints(directory, partition.log_start_offset, end_offset, segments)
    logger.warning(
        "log lost, continues at the tier's end",
        extra={"partition": str(held.partition), "offset": end_offset},
    )
    return directory, last


async def _read_segments(store: MetadataStore, held: _Held, partition: Partition) -> TieredSegments:
    """Return the tier's segments; reads again if a swap of segments met the reading."""
    while True:
        try:
            return (await read_tier(store, partition.topic_id, partition.partition)).finished
        except TierRewritten as error:
            logger.warning(
                "tier changed while it was read, will retry",
                extra={"partition": str(held.partition), "reason": str(error)},
            )
            await asyncio.sleep(REWRITTEN_RETRY_S)


async def _lay_producers(
    objects: ObjectStore, index_key: str, directory: Path, end_offset: int
) -> None:
    """Write the producers' snapshot for the log that begins at the tier's end.

    Without one the log opens with no producers. An object that is missing or damaged is logged.
    Raises ``StoreUnavailable``.
    """
    try:
        index = IndexFile.parse(await objects.get(index_key), key=index_key)
    except StoreUnavailable:
        raise
    except TidelogError as error:
        logger.error("producers' state of the tier cannot be read", extra={"reason": str(error)})
        return
    # The log checks the snapshot when it opens, and ignores a damaged one.
    snapshot_path(directory, end_offset).write_bytes(index.producer_snapshot)


def _write_checkpoints(
    directory: Path, log_start_offset: int, end_offset: int, segments: TieredSegments
) -> None:
    """Write the checkpoints of an empty log that begins at ``end_offset``."""
    starts: dict[int, int] = {}
    for segment in segments:
        for epoch, start_offset in segment.leader_epochs:
            starts.setdefault(epoch, start_offset)
    write_checkpoint(directory / LEADER_EPOCH_FILE, sorted(starts.items()))
    write_checkpoint(directory / START_OFFSET_FILE, [[log_start_offset, end_offset]])
