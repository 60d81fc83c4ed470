"""The records of groups: one item a group, one item a page of committed offsets.

A ``GroupRecord`` holds a group's generation. The record of a consumer group (KIP-848) has a field
``consumer``, that of a share group (KIP-932) a field ``share``. Every offset commit checks the
record and costs by its size, so the record does not grow with the group:

- The members are in pages of their own (``member_pages``), with subscriptions and assignments.
- The subscribed topics are only a hash (``hash_topics``).

A coordinator needs the topics only while it assigns partitions, and the cluster's image has them.
It only has to remember whether they have changed since the group epoch began, which the hash
shows. Epoch and hash are in one item, so they change together:

- A coordinator that fails before it has stored a new epoch leaves the previous epoch and hash.
  The next one finds topics with another hash, and begins the epoch itself. If the record was
  written, the next one finds the same hash and begins none.
- Two coordinators may find the same change. One writes the record; the other's write expects the
  record's version and conflicts.
- A coordinator whose image is behind finds topics with another hash. It assigns the topics that
  it knows, and again with the next image. Until then it sends no classic member its assignment,
  because its image may lack names (``classic_members``).

Older programs stored the topics in the record, or the members too. Both are readable. The first
write of a new coordinator, which precedes every commit, replaces the topics by their hash; the
group's next change moves the members. An older program refuses a group whose record has neither.

A ``GroupOffsets`` holds the committed offsets of up to ``OFFSETS_PAGE_PARTITIONS`` neighbouring
partitions of one topic. A whole topic is one item unless it is wide: a write costs by the size of
the item, so a consumer of ten partitions must not rewrite ten thousand.

The shard of a group is the partition of ``__consumer_offsets`` whose leader coordinates
it. Source: ``GroupCoordinatorService.partitionFor`` of Kafka.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast
from uuid import UUID

from tidelog_core.metadata.coordination.consumer_groups import (
    ConsumerGroupState,
    ConsumerMember,
    read_topics_hash,
    unpack_consumers,
)
from tidelog_core.metadata.coordination.packed_members import (
    decode_bytes,
    encode_bytes,
    pack,
    unpack,
    whole_number,
)
from tidelog_core.metadata.coordination.share_groups import (
    ShareGroupState,
    ShareMember,
    unpack_sharers,
)
from tidelog_core.metadata.fields import Added, InKey, Natural, Omitted, Stored, typed_rows
from tidelog_core.metadata.record import Record, key_form
from tidelog_core.metadata.store import Item, ItemKey, JsonValue

GROUP_COLLECTION_PREFIX = "group:"
OFFSET_COLLECTION_PREFIX = "offset:"
OFFSETS_PAGE_PARTITIONS = 64


def java_string_hash(text: str) -> int:
    """Return Java's ``String.hashCode`` as a signed 32-bit number."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(data), 2):
        value = (31 * value + (data[index] << 8 | data[index + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def shard_of_group(group_id: str, shard_count: int) -> int:
    """Return the partition of ``__consumer_offsets`` that the group belongs to."""
    return (java_string_hash(group_id) & 0x7FFFFFFF) % shard_count


def group_collection(shard: int) -> str:
    """Return the collection that lists the groups of a shard."""
    return f"{GROUP_COLLECTION_PREFIX}{shard}"


def offset_collection(group_id: str) -> str:
    """Return the collection that lists a group's committed offsets."""
    return f"{OFFSET_COLLECTION_PREFIX}{group_id}"


def offset_page(partition: int) -> int:
    """Return the page that holds the partition's committed offset."""
    return partition // OFFSETS_PAGE_PARTITIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A stored member. Awaited answers and deadlines are not stored."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]  # by preference: name, opaque metadata
    assignment: bytes


GroupMembers = tuple[GroupMember, ...] | tuple[ConsumerMember, ...] | tuple[ShareMember, ...]


@key_form
def group_key(shard: int, group_id: str) -> ItemKey:
    """Return the key of a group's record."""
    return ItemKey(group_collection(shard), f"{group_id}")


def _state_body(state: ConsumerGroupState | ShareGroupState | None) -> JsonValue:
    """Return the stored state of a consumer or share group, without the members."""
    if state is None:
        return None
    return {"assignment_epoch": state.assignment_epoch, "topics_hash": state.topics_hash}


def _write_consumer(record: GroupRecord) -> JsonValue:
    return _state_body(record.consumer)


def _read_consumer(body: Any, _: Mapping[str, Any]) -> ConsumerGroupState:
    return ConsumerGroupState(
        assignment_epoch=whole_number(body["assignment_epoch"]),
        topics_hash=read_topics_hash(body),
        members=unpack_consumers(body["members"]) if "members" in body else (),
    )


def _write_share(record: GroupRecord) -> JsonValue:
    return _state_body(record.share)


def _read_share(body: Any, before: Mapping[str, Any]) -> ShareGroupState:
    if "consumer" in before:
        raise ValueError("the group is a consumer group")
    return ShareGroupState(
        assignment_epoch=whole_number(body["assignment_epoch"]),
        topics_hash=read_topics_hash(body),
        members=unpack_sharers(body["members"]) if "members" in body else (),
    )


def _read_members(text: Any, _: Mapping[str, Any]) -> tuple[GroupMember, ...]:
    return unpack_classic(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord(Record):
    """A group at its last durable generation."""

    KEY = group_key

    shard: InKey[int]
    group_id: InKey[str]
    # A classic group has neither. Both have members if the pages were read, or if an
    # older program stored them here.
    consumer: Annotated[
        Omitted[ConsumerGroupState | None], Stored(_read_consumer, _write_consumer)
    ] = None
    share: Annotated[Omitted[ShareGroupState | None], Stored(_read_share, _write_share)] = None
    stamp: Added[Natural] = 0  # pages of members with a greater one are not valid yet
    phase: str  # Kafka's name of the group's state
    phase_since_ms: int  # wall clock
    generation: Natural  # of a consumer or share group: the group epoch
    protocol_type: str | None  # None: a group that only stores offsets
    protocol_name: str | None
    leader: str | None
    # Of a classic group, as those above.
    members: Annotated[tuple[GroupMember, ...], Stored(_read_members, None)] = ()

    @property
    def member_count(self) -> int:
        """The number of members, of any kind."""
        return len(self.all_members)

    @property
    def all_members(self) -> GroupMembers:
        """The members, of any kind, in the order they joined."""
        if self.share is not None:
            return self.share.members
        return self.members if self.consumer is None else self.consumer.members

    def with_members(self, members: GroupMembers) -> GroupRecord:
        """Return the same record with these members, which are of its kind."""
        if self.share is not None:
            share = dataclasses.replace(self.share, members=cast("Any", members))
            return dataclasses.replace(self, share=share)
        if self.consumer is not None:
            consumer = dataclasses.replace(self.consumer, members=cast("Any", members))
            return dataclasses.replace(self, consumer=consumer)
        return dataclasses.replace(self, members=cast("Any", members))


def has_own_members(item: Item) -> bool:
    """Return whether an older program wrote the group's record, members and all."""
    return "members" in item.body


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A consumer's committed offset in one partition."""

    offset: int
    leader_epoch: int  # -1 if the client does not know it
    metadata: str
    committed_ms: int  # wall clock
    expires_ms: int | None = None  # only set by OffsetCommit before version 5


OffsetsByTopic = Mapping[tuple[str, UUID], Mapping[int, CommittedOffset]]
"""Committed offsets by the topic's name and id, then by partition."""


@key_form
def offset_item_id(group_id: str, topic: str, page: int) -> ItemKey:
    """Return the key of a page of committed offsets."""
    return ItemKey(offset_collection(group_id), f"{topic}/{page:06d}")


def _write_offsets(record: GroupOffsets) -> JsonValue:
    return [
        [p, o.offset, o.leader_epoch, o.metadata, o.committed_ms, o.expires_ms]
        for p, o in sorted(record.partitions.items())
    ]


def _read_offsets(rows: Any, _: Mapping[str, Any]) -> dict[int, CommittedOffset]:
    return {
        partition: CommittedOffset(*offset)
        for partition, *offset in typed_rows(rows, int, int, int, str, int, int | None)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffsets(Record):
    """One page of a group's committed offsets in one topic.

    The topic's id separates the offsets of a deleted topic from those of a later topic of
    the same name.
    """

    KEY = offset_item_id

    group_id: InKey[str]
    topic: InKey[str]
    topic_id: UUID
    page: InKey[int]
    partitions: Annotated[
        Mapping[int, CommittedOffset], Stored(_read_offsets, _write_offsets, name="offsets")
    ]


def pack_classic(members: Sequence[GroupMember]) -> str:
    """Return the members as one string."""
    rows: list[list[Any]] = [
        [
            m.member_id,
            m.group_instance_id,
            m.client_id,
            m.client_host,
            m.session_timeout_ms,
            m.rebalance_timeout_ms,
            [[name, encode_bytes(metadata)] for name, metadata in m.protocols],
            encode_bytes(m.assignment),
        ]
        for m in members
    ]
    return pack(rows)


def unpack_classic(text: str) -> tuple[GroupMember, ...]:
    """Return packed members. Raises ``ValueError``, ``TypeError``, ``zlib.error``."""
    return tuple(
        GroupMember(
            member_id=member_id,
            group_instance_id=instance_id,
            client_id=client_id,
            client_host=client_host,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            protocols=tuple((name, decode_bytes(metadata)) for name, metadata in protocols),
            assignment=decode_bytes(assignment),
        )
        for (
            member_id,
            instance_id,
            client_id,
            client_host,
            session_timeout_ms,
            rebalance_timeout_ms,
            protocols,
            assignment,
        ) in unpack(text)
    )
