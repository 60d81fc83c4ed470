"""That replicas are to erase a key from their own segments, which no tier has.

    collection      key                                                     value
    key-erasure     <topic id>:<partition, 10 digits>:<SHA-256 of the key>  KeyErasure

Written by whoever erases. The leader says up to which offset; each replica names the segments
that it replaces, and says when no record of the key is left below that. One that is down finds
the item when it comes back. The key itself is not in it: metadata have backups.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from uuid import UUID

from tidelog_core.metadata.body import BodyReader
from tidelog_core.metadata.records import NUMBER_DIGITS
from tidelog_core.metadata.store import ABSENT, Body, Item, ItemKey, JsonValue

KEY_ERASURE_COLLECTION = "key-erasure"
NOT_TAKEN_UP = -1  # as up_to: the leader has not seen it yet
REPLACED_MAX = 500  # segments that one replica names; an item of 12 replicas is under 200 KB


@dataclass(frozen=True, slots=True)
class ReplacedSegment:
    """A segment that one replica has replaced, or was about to when it last stopped."""

    base_offset: int
    end_offset: int  # exclusive
    removed_count: int  # records


@dataclass(frozen=True, slots=True)
class ReplicaErasure:
    """What one replica says."""

    broker_id: int
    is_done: bool = False
    replaced: tuple[ReplacedSegment, ...] = ()  # by base offset
    unnamed_count: int = 0  # more of them that there was no room to name

    def with_replaced(self, segment: ReplacedSegment) -> ReplicaErasure:
        """Return it with one more segment; one that is named already is named once."""
        others = tuple(one for one in self.replaced if one.base_offset != segment.base_offset)
        if len(others) >= REPLACED_MAX:
            return dataclasses.replace(self, unnamed_count=self.unnamed_count + 1)
        named = sorted((*others, segment), key=lambda one: one.base_offset)
        return dataclasses.replace(self, replaced=tuple(named))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyErasure:
    """A request that no replica keeps records of the key below ``up_to``."""

    topic_id: UUID
    partition: int
    key_sha256: str  # hex
    up_to: int = NOT_TAKEN_UP  # exclusive; the log's end when its leader took the request up
    replicas: tuple[ReplicaErasure, ...] = ()  # by broker id; those that have said something
    version: int = dataclasses.field(default=ABSENT, compare=False)

    @property
    def item_id(self) -> ItemKey:
        """The item's key."""
        return key_erasure_key(self.topic_id, self.partition, self.key_sha256)

    @property
    def is_taken_up(self) -> bool:
        """Whether the leader has said up to where."""
        return self.up_to != NOT_TAKEN_UP

    def of(self, broker_id: int) -> ReplicaErasure:
        """Return what the broker's replica has said."""
        found = [one for one in self.replicas if one.broker_id == broker_id]
        return found[0] if found else ReplicaErasure(broker_id)

    def with_replica(self, replica: ReplicaErasure) -> KeyErasure:
        """Return it with what one replica says now."""
        others = [one for one in self.replicas if one.broker_id != replica.broker_id]
        replicas = sorted((*others, replica), key=lambda one: one.broker_id)
        return dataclasses.replace(self, replicas=tuple(replicas))

    def asked_anew(self) -> KeyErasure:
        """Return it to be done again; what was replaced already stays named."""
        undone = tuple(dataclasses.replace(one, is_done=False) for one in self.replicas)
        return dataclasses.replace(self, up_to=NOT_TAKEN_UP, replicas=undone)

    def to_body(self) -> Body:
        """Return the item's body."""
        return {
            "topic_id": str(self.topic_id),
            "partition": self.partition,
            "key_sha256": self.key_sha256,
            "up_to": self.up_to,
            # Rows of broker, whether it is done, unnamed segments, and the named ones.
            "replicas": [
                [
                    one.broker_id,
                    int(one.is_done),
                    one.unnamed_count,
                    [[s.base_offset, s.end_offset, s.removed_count] for s in one.replaced],
                ]
                for one in self.replicas
            ],
        }

    @classmethod
    def from_item(cls, item: Item) -> KeyErasure:
        """Return the record. Raises ``CorruptItem``."""
        fields = BodyReader(item)
        record = cls(
            topic_id=fields.uuid("topic_id"),
            partition=fields.integer("partition", at_least=0),
            key_sha256=fields.text("key_sha256"),
            up_to=fields.integer("up_to", at_least=NOT_TAKEN_UP),
            replicas=tuple(_replica(row, fields) for row in fields.sequence("replicas")),
            version=item.version,
        )
        fields.finish()
        if record.item_id != item.id:
            raise fields.error(f"holds another's: {record.item_id.key}")
        return record


def _replica(row: JsonValue, fields: BodyReader) -> ReplicaErasure:
    match row:
        case [int(broker_id), 0 | 1 as is_done, int(unnamed_count), [*segments]]:
            replaced = tuple(_segment(one, fields) for one in segments)
            return ReplicaErasure(broker_id, bool(is_done), replaced, unnamed_count)
    raise fields.error(f"replicas must hold rows of four, not {row!r}")


def _segment(row: JsonValue, fields: BodyReader) -> ReplacedSegment:
    match row:
        case [int(base_offset), int(end_offset), int(removed_count)]:
            return ReplacedSegment(base_offset, end_offset, removed_count)
    raise fields.error(f"a replaced segment must be three whole numbers, not {row!r}")


def key_erasure_prefix(topic_id: UUID) -> str:
    """Return what the keys of the topic's requests begin with."""
    return f"{topic_id}:"


def key_erasure_key(topic_id: UUID, partition: int, key_sha256: str) -> ItemKey:
    """Return where the partition's request for the key lies."""
    number = f"{partition:0{NUMBER_DIGITS}d}"
    return ItemKey(KEY_ERASURE_COLLECTION, f"{key_erasure_prefix(topic_id)}{number}:{key_sha256}")
