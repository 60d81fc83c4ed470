"""The requests that replicas erase: a key from their own segments, or whole local segments.

The erasing process writes a request. The leader adds the offset. A replica that is down finds the
item when it starts.

For topics without a tier a request names a key, by a hash of it, because metadata have backups:
each replica names the segments that it replaces, and reports when no record of the key is left
below the offset. While records in the tier are being erased, a request is about all local segments:
each replica adds itself when it has nothing local below the offset.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from tidelog_core.metadata.fields import Natural, OrMinusOne, Stored, typed_rows
from tidelog_core.metadata.record import Record, key_form
from tidelog_core.metadata.records import NUMBER_DIGITS
from tidelog_core.metadata.store import ItemKey, JsonValue

KEY_ERASURE_COLLECTION = "key-erasure"
LOCAL_ERASURE_COLLECTION = "local-erasure"
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
    """One replica's progress."""

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


def _write_replicas(record: KeyErasure) -> JsonValue:
    """Return rows of broker, whether it is done, unnamed segments, and the named ones."""
    return [
        [
            one.broker_id,
            int(one.is_done),
            one.unnamed_count,
            [[s.base_offset, s.end_offset, s.removed_count] for s in one.replaced],
        ]
        for one in record.replicas
    ]


def _read_replicas(rows: Any, _: Mapping[str, Any]) -> tuple[ReplicaErasure, ...]:
    replicas = []
    for broker_id, is_done, unnamed_count, segments in typed_rows(rows, int, int, int, list):
        if is_done not in (0, 1):
            raise ValueError(f"{is_done} is neither 0 nor 1")
        replaced = tuple(ReplacedSegment(*row) for row in typed_rows(segments, int, int, int))
        replicas.append(ReplicaErasure(broker_id, bool(is_done), replaced, unnamed_count))
    return tuple(replicas)


def key_erasure_prefix(topic_id: UUID) -> str:
    """Return the prefix of the keys of the topic's requests."""
    return f"{topic_id}:"


@key_form
def key_erasure_key(topic_id: UUID, partition: int, key_sha256: str) -> ItemKey:
    """Return the key of the partition's request for the key."""
    number = f"{partition:0{NUMBER_DIGITS}d}"
    return ItemKey(KEY_ERASURE_COLLECTION, f"{key_erasure_prefix(topic_id)}{number}:{key_sha256}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyErasure(Record):
    """A request that no replica keeps records of the key below ``up_to``."""

    KEY = key_erasure_key

    topic_id: UUID
    partition: Natural
    key_sha256: str  # hex
    # Exclusive; the log's end when its leader took the request up.
    up_to: OrMinusOne = NOT_TAKEN_UP
    # By broker id; only replicas that have reported.
    replicas: Annotated[tuple[ReplicaErasure, ...], Stored(_read_replicas, _write_replicas)] = ()

    @property
    def is_taken_up(self) -> bool:
        """Whether the leader has set ``up_to``."""
        return self.up_to != NOT_TAKEN_UP

    def of(self, broker_id: int) -> ReplicaErasure:
        """Return the progress that the broker has reported, empty if none."""
        found = [one for one in self.replicas if one.broker_id == broker_id]
        return found[0] if found else ReplicaErasure(broker_id)

    def with_replica(self, replica: ReplicaErasure) -> KeyErasure:
        """Return it with the replica's new progress."""
        others = [one for one in self.replicas if one.broker_id != replica.broker_id]
        replicas = sorted((*others, replica), key=lambda one: one.broker_id)
        return dataclasses.replace(self, replicas=tuple(replicas))

    def restarted(self) -> KeyErasure:
        """Return the request as one to do again. It keeps the names of replaced segments."""
        undone = tuple(dataclasses.replace(one, is_done=False) for one in self.replicas)
        return dataclasses.replace(self, up_to=NOT_TAKEN_UP, replicas=undone)


@key_form
def local_erasure_key(topic_id: UUID, partition: int) -> ItemKey:
    """Return the key of the partition's request."""
    return ItemKey(LOCAL_ERASURE_COLLECTION, f"{topic_id}:{partition:0{NUMBER_DIGITS}d}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalErasure(Record):
    """A request that no replica keeps local segments with offsets below ``up_to``."""

    KEY = local_erasure_key

    topic_id: UUID
    partition: Natural
    # Exclusive; the log's end when its leader took the request up.
    up_to: OrMinusOne = NOT_TAKEN_UP
    # The leader must roll at this offset or later: a replica has a segment that ends here, which
    # it may drop only once the tier has all of it.
    roll_to: Natural = 0
    honoured: tuple[int, ...] = ()  # brokers that have nothing local below up_to

    @property
    def is_taken_up(self) -> bool:
        """Whether the leader has set ``up_to``."""
        return self.up_to != NOT_TAKEN_UP
