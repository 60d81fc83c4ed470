"""Administration of groups by processes that do not coordinate them.

Theory of operation. A group's coordinator has the group in memory. Its members are stored from the
beginning of their first generation on: a generation is stored before any member learns of it.
Every write of a coordinator, to members' pages and committed offsets too, expects its version of
the group's record. So another process that writes the record takes the group from the coordinator:
the coordinator's next write conflicts, and it reads the store. If it still coordinates the group
and the record has only a newer version, it continues. If not, it unloads the group and sends its
members to find their coordinator. A coordinator that has read a record writes it once before it
commits offsets, which fences every earlier writer.

The functions here always write the record, at the version at which it had no members. They may
interleave with a coordinator as follows.

- The coordinator writes first, a generation with members or a commit: the write here conflicts,
  and is decided again on the new record. With members it is refused.
- The write here comes first, while members in the coordinator's memory wait for their first
  generation. The generation is stored later, and only then do they read their offsets, which are
  the new ones. After a deletion they have to join again.
- A commit that the coordinator has accepted before, from a consumer outside of any generation, is
  written before, or it fails and is sent again: then it is the later one.

Records are changed and deleted here, never created. A coordinator that has not noticed finds
another version or no record, but never the same version of a recreated group, because only
coordinators create groups. A group that does not exist begins with its first member or commit, at
a node.

The record's write is in the changelog, so that the coordinator reads the group again without
delay. Safety does not depend on that.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar
from uuid import UUID

from tidelog_core.admin.groups.offset_pages import (
    PAGES_PER_COMMIT,
    by_page,
    read_offsets,
    read_page,
    read_pages,
)
from tidelog_core.admin.groups.pending_offsets import drop_pending
from tidelog_core.admin.groups.share_offsets import (
    RecordOrCorruptItem,
    begin_at,
    forget,
    is_begun,
    list_share_partitions,
    read_share_partitions,
)
from tidelog_core.admin.groups.stored_groups import list_pages, read_group, read_groups
from tidelog_core.batched import batched
from tidelog_core.clock import wall_clock_ms
from tidelog_core.errors import (
    CoordinatorNotAvailable,
    CorruptItem,
    GroupIdNotFound,
    InvalidGroupId,
    InvalidRequest,
    NonEmptyGroup,
    UnknownTopicOrPartition,
    VersionConflict,
)
from tidelog_core.metadata.coordination.groups import (
    CommittedOffset,
    GroupRecord,
    OffsetsByTopic,
    shard_of_group,
)
from tidelog_core.metadata.coordination.member_pages import StoredGroup
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import check, delete, put
from tidelog_core.metadata.store import MetadataStore, Write
from tidelog_core.metadata.update import retried
from tidelog_core.model import CONSUMER_OFFSETS_TOPIC, TopicPartition

logger = logging.getLogger(__name__)

T = TypeVar("T")

EMPTY = "Empty"
GROUP_ID_SIZE_BYTES_MAX = 1000  # DynamoDB's sort keys have 1,024
RETRY_SECONDS_MAX = 0.05
SHARDS_READ_AT_ONCE = 10
UNKNOWN_LEADER_EPOCH = -1


def validate_group_id(group_id: str) -> None:
    """Raise ``InvalidGroupId`` if no group may have this id."""
    size_bytes = len(group_id.encode())
    if not 1 <= size_bytes <= GROUP_ID_SIZE_BYTES_MAX:
        raise InvalidGroupId(
            f"a group id has 1 to {GROUP_ID_SIZE_BYTES_MAX} bytes, not {size_bytes}"
        )


def _require_one_commit(count: int, what: str) -> None:
    """Raise ``InvalidRequest`` if the offsets are in more items than fit into one commit."""
    if count > PAGES_PER_COMMIT:
        raise InvalidRequest(
            f"the offsets are in {count} {what}; at most {PAGES_PER_COMMIT} can be"
            " written at once, so reset fewer topics or partitions at a time"
        )


def _readable(
    groups: Mapping[str, StoredGroup | CorruptItem | CoordinatorNotAvailable],
) -> list[GroupRecord]:
    """Return the readable groups; a damaged one must not hide them."""
    found = []
    for group in groups.values():
        if isinstance(group, StoredGroup):
            found.append(group.record)
        else:
            logger.warning("group cannot be read", extra={"reason": str(group)})
    return found


class GroupAdmin:
    """Reads and changes groups in the store. Any number of processes may do so concurrently."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        view: ClusterView,
    ) -> None:
        self._store = store
        self._view = view

    async def list_groups(self) -> list[GroupRecord]:
        """Return every stored group that can be read, by id."""
        image = await self._view.refresh()
        shards = range(len(image.partitions(CONSUMER_OFFSETS_TOPIC)))
        found: list[GroupRecord] = []
        for some in batched(shards, SHARDS_READ_AT_ONCE):
            read = await asyncio.gather(*(read_groups(self._store, shard) for shard in some))
            found += [group for groups in read for group in _readable(groups)]
        return sorted(found, key=lambda group: group.group_id)

    async def describe(self, group_id: str) -> GroupRecord:
        """Return the group at its last durable generation.

        Raises ``GroupIdNotFound``, ``InvalidGroupId``.
        """
        return await self._read(await self._view.refresh(), group_id)

    async def offsets(self, group_id: str) -> dict[TopicPartition, CommittedOffset]:
        """Return the group's committed offsets in topics that are there."""
        names = (await self._view.refresh()).topic_names
        return await read_offsets(
            self._store, group_id, None, is_topic=lambda name, topic_id: names.get(topic_id) == name
        )

    async def start_offsets(self, group_id: str) -> dict[TopicPartition, RecordOrCorruptItem]:
        """Return the start offsets of a share group, in existing topics."""
        names = (await self._view.refresh()).topic_names
        return {
            TopicPartition(names[topic_id], partition): record
            for (topic_id, partition), record in (
                await read_share_partitions(self._store, group_id)
            ).items()
            if topic_id in names and is_begun(record)
        }

    async def require_empty(self, group_id: str) -> None:
        """Raise ``GroupIdNotFound``, ``InvalidGroupId`` or ``NonEmptyGroup`` as a reset would."""
        await self._read_empty(await self._view.refresh(), group_id)

    async def reset_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Make these the group's committed offsets, all of them or none. Durable on return.

        A share group begins to read there, as if nothing from there on had been read.

        Raises ``GroupIdNotFound``, ``InvalidGroupId``, ``NonEmptyGroup``,
        ``UnknownTopicOrPartition``, and ``InvalidRequest`` for more than one transaction
        takes.
        """

        async def reset(image: ClusterImage) -> None:
            group = await self._read_empty(image, group_id)
            committed = self._committed(image, offsets)
            if group.share is None:
                writes = await self._moved_offsets(group_id, committed)
            else:
                writes = await self._moved_starts(group_id, committed)
            await self._store.commit([put(group), *writes])

        await self._retried(reset)

    async def delete_group(self, group_id: str) -> None:
        """Remove the group, its committed offsets, and the pending offsets of open transactions.

        A crash in between leaves an empty group. Raises ``GroupIdNotFound``,
        ``InvalidGroupId``, ``NonEmptyGroup``.
        """

        async def remove(image: ClusterImage) -> None:
            group = await self._read_empty(image, group_id)
            # From here on no commit can add a page that is not seen below.
            await self._store.commit([put(group)])
            group = dataclasses.replace(group, version=group.version + 1)
            pages = await read_pages(self._store, group_id)
            writes = [delete(page, is_logged=False) for page in pages]
            if group.share is not None:
                items = await list_share_partitions(self._store, group_id)
                writes += [forget(item) for item in items]
            for item in await list_pages(self._store, group.shard, group_id):
                writes.append(Write(item.id, None, item.version, is_logged=False))
            for some in batched(writes, PAGES_PER_COMMIT):
                await self._store.commit(some, checks=[check(group)])
            await drop_pending(
                self._store, shard=group.shard, group_id=group_id, if_still=check(group)
            )
            await self._store.commit([delete(group)])

        await self._retried(remove)

    async def _retried(self, change: Callable[[ClusterImage], Awaitable[T]]) -> T:
        """Change the group. After a conflict, read and decide again."""

        async def attempt() -> T:
            return await change(await self._view.refresh())

        return await retried(attempt, on=(VersionConflict,), pause_seconds_max=RETRY_SECONDS_MAX)

    async def _read(self, image: ClusterImage, group_id: str) -> GroupRecord:
        validate_group_id(group_id)
        shard_count = len(image.partitions(CONSUMER_OFFSETS_TOPIC))
        stored = None
        if shard_count:
            shard = shard_of_group(group_id, shard_count)
            stored = await read_group(self._store, shard, group_id)
        if stored is None:
            raise GroupIdNotFound(f"Group {group_id} not found.")
        return stored.record

    async def _read_empty(self, image: ClusterImage, group_id: str) -> GroupRecord:
        group = await self._read(image, group_id)
        if group.phase != EMPTY or group.member_count:
            raise NonEmptyGroup(
                f"Group {group_id} is {group.phase} with {group.member_count} member(s);"
                f" it must be {EMPTY}: stop its consumers first."
            )
        return group

    async def _moved_offsets(self, group_id: str, offsets: OffsetsByTopic) -> list[Write]:
        pages = by_page(offsets)
        _require_one_commit(len(pages), "pages")
        current = [await read_page(self._store, group_id, key) for key in pages]
        return [
            put(
                dataclasses.replace(page, partitions={**page.partitions, **some}),
                is_logged=False,
            )
            for page, some in zip(current, pages.values(), strict=True)
        ]

    async def _moved_starts(self, group_id: str, offsets: OffsetsByTopic) -> list[Write]:
        _require_one_commit(sum(map(len, offsets.values())), "share partitions")
        known = await read_share_partitions(self._store, group_id)
        return [
            begin_at(known, group_id, topic_id, partition, committed.offset)
            for (_, topic_id), some in offsets.items()
            for partition, committed in some.items()
        ]

    def _committed(
        self, image: ClusterImage, offsets: Mapping[TopicPartition, int]
    ) -> OffsetsByTopic:
        now_ms = wall_clock_ms()
        committed: dict[tuple[str, UUID], dict[int, CommittedOffset]] = {}
        for name, offset in offsets.items():
            topic = image.topic(name.topic)
            if topic is None or image.partition(name) is None:
                raise UnknownTopicOrPartition(f"Unable to find partition {name}.")
            committed.setdefault((topic.name, topic.topic_id), {})[name.partition] = (
                CommittedOffset(offset, UNKNOWN_LEADER_EPOCH, "", now_ms)
            )
        return committed
