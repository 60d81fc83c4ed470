"""The records of groups: one item a group, one item a page of committed offsets.

``group:<shard>`` / ``<group id>`` holds a group's generation. The record of a consumer group
(KIP-848) has a field ``consumer``, that of a share group (KIP-932) a field ``share``. Every
commit of offsets checks the record and pays by its size, so nothing is in it that grows with
the group:

- The members are in pages beside it (``member_pages``), with what they subscribe to and have.
- Of the subscribed topics it has a hash (``hash_topics``), whatever their number.

A coordinator needs the topics themselves only while it assigns partitions, and the cluster's
image shows them. All that it has to remember is whether they have changed since the group's epoch
began, which the hash tells. Epoch and hash are one item, so no write comes between them:

- A coordinator that dies before it has stored a new epoch leaves the epoch and the hash of before.
  The next one finds other topics than those of the hash, and begins the epoch itself. If the
  record was written, the next one finds the same topics, and begins none.
- Two coordinators may find the same change. One writes the record; the other's write, conditional
  on the record's version, loses.
- A coordinator whose image is behind finds other topics than those of the hash. It assigns those
  that it knows, and again with the next image. Until it has assigned, it tells no classic member
  what it has: its image may not have all the names (``classic_requests``).

An older program kept the topics in the record, or the members too. Both are read. The first
write of a coordinator that takes over, which comes before any commit, replaces the topics by
their hash; the group's next change moves the members. An older program refuses a group whose
record has neither.

``offset:<group id>`` / ``<topic>/<page>`` holds the committed offsets of up to
``OFFSETS_PAGE_PARTITIONS`` neighbouring partitions of one topic. A whole topic is one
item unless it is wide: a write costs by the size of the item, so a consumer of ten
partitions must not rewrite ten thousand.

The shard of a group is the partition of ``__consumer_offsets`` whose leader coordinates
it. Source: ``GroupCoordinatorService.partitionFor`` of Kafka.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

from tidelog_core.metadata.body import BodyReader
from tidelog_core.metadata.consumer_groups import ConsumerGroupState, ConsumerMember
from tidelog_core.metadata.packed_members import decode_bytes, encode_bytes, pack, unpack
from tidelog_core.metadata.share_groups import ShareGroupState, ShareMember
from tidelog_core.metadata.store import ABSENT, Body, Item, ItemKey, JsonValue

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
    """A member as it is stored. Awaited answers and deadlines are not."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]  # by preference: name, opaque metadata
    assignment: bytes


GroupMembers = tuple[GroupMember, ...] | tuple[ConsumerMember, ...] | tuple[ShareMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """A group at its last durable generation."""

    shard: int
    group_id: str
    phase: str  # Kafka's name of the group's state
    phase_since_ms: int  # wall clock
    generation: int  # of a consumer or share group: the group epoch
    protocol_type: str | None  # None: a group that only stores offsets
    protocol_name: str | None
    leader: str | None
    members: tuple[GroupMember, ...]
    consumer: ConsumerGroupState | None = None  # with neither it is a classic group
    share: ShareGroupState | None = None
    stamp: int = 0  # pages of members with a greater one are not valid yet
    version: int = field(default=ABSENT, compare=False)

    @property
    def item_id(self) -> ItemKey:
        """The item's key."""
        return ItemKey(group_collection(self.shard), self.group_id)

    @property
    def member_count(self) -> int:
        """How many members the group has, of whatever kind."""
        return len(self.all_members)

    @property
    def all_members(self) -> GroupMembers:
        """The members, of whatever kind, in the order they joined."""
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

    def to_body(self) -> Body:
        """Return the item's body: everything but the members."""
        kind = {} if self.consumer is None else {"consumer": self.consumer.to_body()}
        if self.share is not None:
            kind = {"share": self.share.to_body()}
        return {
            **kind,
            "stamp": self.stamp,
            "phase": self.phase,
            "phase_since_ms": self.phase_since_ms,
            "generation": self.generation,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol_name,
            "leader": self.leader,
        }

    @classmethod
    def from_item(cls, item: Item) -> GroupRecord:
        """Return the record, with members only where it has them itself.

        Raises ``CorruptItem``.
        """
        fields = BodyReader(item)
        members: tuple[GroupMember, ...] = ()
        if has_own_members(item):
            blob = fields.text("members")
            try:
                members = unpack_classic(blob)
            except (ValueError, TypeError, zlib.error) as error:
                raise fields.error(f"members cannot be read: {error}") from None
        consumer, share = None, None
        try:
            if "consumer" in item.body:
                consumer = ConsumerGroupState.from_body(fields.anything("consumer"))
            elif "share" in item.body:
                share = ShareGroupState.from_body(fields.anything("share"))
        except (ValueError, TypeError, KeyError, IndexError, zlib.error) as error:
            raise fields.error(f"the group's state cannot be read: {error}") from None
        record = cls(
            shard=int(item.id.collection.removeprefix(GROUP_COLLECTION_PREFIX)),
            group_id=item.id.key,
            phase=fields.text("phase"),
            phase_since_ms=fields.integer("phase_since_ms"),
            generation=fields.integer("generation", at_least=0),
            protocol_type=fields.text_or_none("protocol_type"),
            protocol_name=fields.text_or_none("protocol_name"),
            leader=fields.text_or_none("leader"),
            members=members,
            consumer=consumer,
            share=share,
            stamp=fields.integer_or_absent("stamp", absent=0, at_least=0),
            version=item.version,
        )
        fields.finish()
        return record


def has_own_members(item: Item) -> bool:
    """Return whether an older program wrote the group's record, members and all."""
    return "members" in item.body


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """What a consumer committed for one partition."""

    offset: int
    leader_epoch: int  # -1 where the client does not know it
    metadata: str
    committed_ms: int  # wall clock
    expires_ms: int | None = None  # only set by OffsetCommit before version 5


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffsets:
    """One page of a group's committed offsets in one topic.

    The topic's id tells the offsets of a deleted topic from those of a newer one that
    took its name.
    """

    group_id: str
    topic: str
    topic_id: UUID
    page: int
    partitions: Mapping[int, CommittedOffset]
    version: int = field(default=ABSENT, compare=False)

    @property
    def item_id(self) -> ItemKey:
        """The item's key."""
        return offset_item_id(self.group_id, self.topic, self.page)

    def to_body(self) -> Body:
        """Return the item's body."""
        return {
            "topic_id": str(self.topic_id),
            "offsets": [
                [p, o.offset, o.leader_epoch, o.metadata, o.committed_ms, o.expires_ms]
                for p, o in sorted(self.partitions.items())
            ],
        }

    @classmethod
    def from_item(cls, item: Item) -> GroupOffsets:
        """Return the record. Raises ``CorruptItem``."""
        fields = BodyReader(item)
        topic, _, page = item.id.key.rpartition("/")
        if not topic or not page.isdecimal():
            raise fields.error("the key is not a topic and a page")
        record = cls(
            group_id=item.id.collection.removeprefix(OFFSET_COLLECTION_PREFIX),
            topic=topic,
            topic_id=fields.uuid("topic_id"),
            page=int(page),
            partitions=dict(_offset_row(row, fields) for row in fields.sequence("offsets")),
            version=item.version,
        )
        fields.finish()
        return record


def offset_item_id(group_id: str, topic: str, page: int) -> ItemKey:
    """Return where a page of committed offsets lies."""
    return ItemKey(offset_collection(group_id), f"{topic}/{page:06d}")


def _offset_row(row: JsonValue, fields: BodyReader) -> tuple[int, CommittedOffset]:
    match row:
        case [
            int(partition),
            int(offset),
            int(leader_epoch),
            str(metadata),
            int(committed_ms),
            None | int() as expires_ms,
        ]:
            value = CommittedOffset(offset, leader_epoch, metadata, committed_ms, expires_ms)
            return partition, value
        case _:
            raise fields.error(f"{row!r} is not a committed offset")


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
