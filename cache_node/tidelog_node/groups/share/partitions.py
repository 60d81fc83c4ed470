"""The share partitions of the partitions that this node leads, each loaded on first use.

Reading one claims it: before any record is delivered the item is written with this leader's epoch,
so that pending writes of an earlier leader fail. An item that a later leader has claimed is left
alone. An item that others have changed or deleted is read again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable
from uuid import UUID

from tidelog_core.config import GroupConfig
from tidelog_core.errors import (
    GroupIdNotFound,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    TidelogError,
    VersionConflict,
)
from tidelog_core.metadata.coordination.groups import GroupRecord, group_key, shard_of_group
from tidelog_core.metadata.coordination.share_partitions import (
    NO_START_OFFSET,
    SHARE_COLLECTION_PREFIX,
    SharePartitionRecord,
    share_partition_key,
)
from tidelog_core.metadata.store import ItemKey
from tidelog_core.metadata.update import retried
from tidelog_core.model import CONSUMER_OFFSETS_TOPIC
from tidelog_core.setting_values.offset_reset import parse_offset_reset

from tidelog_node.groups.share.partition import SharePartition, store_record
from tidelog_node.groups.share.state import SharePartitionState
from tidelog_node.inspection.inspector import BatchInspector
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.wire.share_fetch import PartitionKey

logger = logging.getLogger(__name__)

LOAD_ATTEMPTS_MAX = 5


class SharePartitions:
    """All loaded share partitions of this node. For the tasks of one event loop."""

    def __init__(
        self, node: NodeContext, *, replicas: ReplicaManager, inspector: BatchInspector
    ) -> None:
        self._node = node
        self._replicas = replicas
        self._inspector = inspector
        self._held: dict[ItemKey, SharePartition] = {}
        self._loading: dict[ItemKey, asyncio.Task[SharePartition | TidelogError]] = {}
        self._ended: set[SharePartition] = set()  # perhaps with a running write
        self._unwatch: Callable[[], None] | None = None

    def start(self) -> None:
        """Begin to watch changes by other nodes."""
        self._unwatch = self._node.view.watch(SHARE_COLLECTION_PREFIX, self._on_changed_elsewhere)

    async def close(self) -> None:
        """Finish the reads and writes under way."""
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        await asyncio.gather(*self._loading.values())
        for held in tuple(self._held.values()):
            held.end(NotLeaderOrFollower("the node is stopping"))
        while self._ended:
            await asyncio.gather(*(ended.close() for ended in tuple(self._ended)))
            self._forget_ended()

    def settings(self, group_id: str) -> GroupConfig:
        """Return the group's settings, with the node's defaults."""
        config = self._node.config()
        return self._node.view.image.group_config(group_id, config)

    def get(self, group_id: str, replica: Replica) -> SharePartition | None:
        """Return the share partition if it has been loaded in this leader term."""
        held = self._held.get(_key(group_id, replica))
        if held is None:
            return None
        if held.replica is not replica or held.leader_epoch != replica.leader_epoch:
            held.end(NotLeaderOrFollower("the leader has changed"))
            return None
        return held

    def held(self, group_id: str, keys: Iterable[PartitionKey]) -> list[SharePartition]:
        """Return the loaded ones among the keys, even if this node no longer leads them."""
        wanted = (share_partition_key(group_id, UUID(bytes=topic), index) for topic, index in keys)
        return [self._held[key] for key in wanted if key in self._held]

    def of_group(self, group_id: str) -> list[SharePartition]:
        """Return the loaded ones of a group."""
        return [held for held in self._held.values() if held.group_id == group_id]

    async def load(self, group_id: str, replica: Replica) -> SharePartition:
        """Return the share partition, read and claimed if it was not loaded.

        Raises ``NotLeaderOrFollower``, ``OffsetNotAvailable``, ``GroupIdNotFound``,
        ``CorruptItem`` and the errors of the stores and the log.
        """
        held = self.get(group_id, replica)
        if held is not None:
            return held
        key = _key(group_id, replica)
        task = self._loading.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._load(group_id, replica))
            self._loading[key] = task
            task.add_done_callback(lambda _: self._loading.pop(key, None))
        loaded = await asyncio.shield(task)
        if isinstance(loaded, TidelogError):
            raise loaded
        return loaded

    async def _load(self, group_id: str, replica: Replica) -> SharePartition | TidelogError:
        try:
            return await retried(
                lambda: self._claim(group_id, replica),
                on=(VersionConflict,),
                attempts_max=LOAD_ATTEMPTS_MAX,
            )
        except VersionConflict:
            return NotLeaderOrFollower("the share partition's state keeps changing")
        except TidelogError as error:
            return error
        except OSError as error:
            logger.error(
                "share partition could not be read",
                extra={"partition": str(replica.partition), "reason": str(error)},
            )
            return NotLeaderOrFollower("its log cannot be read")

    async def _claim(self, group_id: str, replica: Replica) -> SharePartition:
        leader_epoch = replica.leader_epoch
        key = _key(group_id, replica)
        item = await self._node.store.get(key)
        if item is None:
            await self._require_group(group_id)
            record = SharePartitionRecord(
                group_id=group_id,
                topic_id=replica.topic_id,
                partition=replica.partition.partition,
            )
        else:
            record = SharePartitionRecord.from_item(item)
        start_offset = record.start_offset
        if start_offset == NO_START_OFFSET:
            start_offset = await self._initial_offset(group_id, replica)
        state = SharePartitionState(
            start_offset,
            record.batches,
            delivery_count_limit=self._node.config().group_share_delivery_count_limit,
        )
        log = replica.log
        state.cut_at(log.log_end_offset)
        state.advance_log_start(log.log_start_offset)
        is_fenced = record.leader_epoch > leader_epoch
        if is_fenced or not replica.is_leader or replica.leader_epoch != leader_epoch:
            self._node.view.nudge()
            raise NotLeaderOrFollower("another node leads the partition")
        start_offset, batches = state.stored()
        record = await store_record(
            self._node.store,
            dataclasses.replace(
                record, leader_epoch=leader_epoch, start_offset=start_offset, batches=batches
            ),
        )
        loaded = SharePartition(record, state, replica, store=self._node.store, on_end=self._on_end)
        loaded.leader_epoch = leader_epoch
        self._held[key] = loaded
        return loaded

    async def _require_group(self, group_id: str) -> None:
        """Raise ``GroupIdNotFound`` if no group is stored that would later delete the item."""
        shard_count = len(self._node.view.image.partitions(CONSUMER_OFFSETS_TOPIC))
        if shard_count > 0:
            shard = shard_of_group(group_id, shard_count)
            item = await self._node.store.get(group_key(shard, group_id))
            if item is not None and GroupRecord.from_item(item).share is not None:
                return
        raise GroupIdNotFound(f"there is no share group {group_id!r}")

    async def _initial_offset(self, group_id: str, replica: Replica) -> int:
        """Return the first offset for a group that has not read the partition yet.

        It is decided once and stored, so the settings must be the newest: another node may just
        have acknowledged a change of them.
        """
        await self._node.view.refresh()
        reset = parse_offset_reset(self.settings(group_id).share_auto_offset_reset)
        log = replica.log
        if reset.strategy == "earliest":
            return log.log_start_offset
        leader = replica.leader
        if leader is not None and not leader.is_high_watermark_settled:
            raise OffsetNotAvailable("the partition's end is not known to its new leader yet")
        if reset.strategy == "by_duration":
            since_ms = max(self._node.clock_ms() - reset.duration_ms, 0)
            # What is committed during the search may be newer than that, and not be found.
            end_offset = log.high_watermark
            found = await replica.unified_log.offset_for_timestamp(since_ms, self._inspector.search)
            if found is not None and found[1] < log.high_watermark:
                return max(found[1], log.log_start_offset)
            return max(end_offset, log.log_start_offset)
        return log.high_watermark

    def _on_changed_elsewhere(self, keys: Collection[ItemKey]) -> None:
        for key in keys:
            held = self._held.get(key)
            if held is not None:
                held.end(NotLeaderOrFollower("the share partition was changed by another writer"))

    def _on_end(self, ended: SharePartition) -> None:
        key = _key(ended.group_id, ended.replica)
        if self._held.get(key) is ended:
            del self._held[key]
        self._forget_ended()
        self._ended.add(ended)

    def _forget_ended(self) -> None:
        self._ended = {ended for ended in self._ended if ended.is_writing}


def _key(group_id: str, replica: Replica) -> ItemKey:
    return share_partition_key(group_id, replica.topic_id, replica.partition.partition)
