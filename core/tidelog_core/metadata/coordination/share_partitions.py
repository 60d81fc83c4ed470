"""The record of a share partition: a share group's progress in one partition (KIP-932).

The item holds the start offset (SPSO): all records before it are done. ``batches`` has the state
of single records from there on: acknowledged, archived, or available again with a delivery count.
Records without a row were never delivered, or are acquired: acquisitions are not stored, so the
next leader finds acquired records available.

Only the partition's leader writes an item, conditional on its version, before the members see its
content. Each leader writes it once before it reads from it, with its leader epoch. This fences
pending writes of previous leaders. Leaders' writes are not logged. Any other process that changes
or deletes an item raises ``state_epoch`` and logs the write, so that the leader reads it again.
Such a change wins: the leader's next write conflicts.

Without an item, or with ``start_offset`` -1, ``share.auto.offset.reset`` decides the start.

A row of ``batches`` is [first offset - start offset, records, state, delivery count]: a
write costs by the size of its item. Source: ``PersisterStateBatch`` of Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, NamedTuple
from uuid import UUID

from tidelog_core.metadata.fields import InKey, Natural, OrMinusOne, Stored, typed_rows
from tidelog_core.metadata.record import Record, key_form
from tidelog_core.metadata.store import ItemKey, JsonValue
from tidelog_core.model import INT64_MAX

SHARE_COLLECTION_PREFIX = "share:"
NO_START_OFFSET = -1
# Stored rows, at worst one a record. All of them fit well into one item.
STORED_BATCHES_MAX = 20_000


class RecordState(IntEnum):
    """A record's state in a share group. The values are those of Kafka's persister."""

    AVAILABLE = 0
    ACQUIRED = 1  # never stored
    ACKNOWLEDGED = 2
    ARCHIVED = 4

    @property
    def is_terminal(self) -> bool:
        """Whether the record is never delivered again."""
        return self in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


class StateBatch(NamedTuple):
    """Records next to each other that are in the same state."""

    first_offset: int
    last_offset: int  # inclusive, as on the wire
    state: RecordState
    delivery_count: int


def share_collection(group_id: str) -> str:
    """Return the collection that lists the share partitions of a group."""
    return f"{SHARE_COLLECTION_PREFIX}{group_id}"


@key_form
def share_partition_key(group_id: str, topic_id: UUID, partition: int) -> ItemKey:
    """Return the key of the share partition's item."""
    return ItemKey(share_collection(group_id), f"{topic_id}/{partition:010d}")


def share_partition_of(id: ItemKey) -> tuple[UUID, int] | None:
    """Return the item's topic and partition, or ``None`` if it is of another kind."""
    topic_id, _, partition = id.key.partition("/")
    try:
        return UUID(topic_id), int(partition)
    except ValueError:
        return None


def _write_batches(record: SharePartitionRecord) -> JsonValue:
    start = record.start_offset
    return [
        [first - start, last - first + 1, int(state), count]
        for first, last, state, count in record.batches
    ]


def _read_batches(rows: Any, before: Mapping[str, Any]) -> tuple[StateBatch, ...]:
    start_offset: int = before["start_offset"]
    batches: list[StateBatch] = []
    next_offset = start_offset
    for row in typed_rows(rows, int, int, int, int):
        distance, records, state, count = row
        first = start_offset + distance
        last = first + records - 1
        if start_offset < 0 or first < next_offset or records < 1 or last >= INT64_MAX:
            raise ValueError(f"batch {row!r} is out of place")
        if state not in _STORED_STATES or count < 0:
            raise ValueError(f"{row!r} is in no state that is stored")
        batches.append(StateBatch(first, last, RecordState(state), count))
        next_offset = last + 1
    return tuple(batches)


_STORED_STATES = frozenset(state for state in RecordState if state is not RecordState.ACQUIRED)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePartitionRecord(Record):
    """A share partition as the next leader would find it."""

    KEY = share_partition_key

    group_id: InKey[str]
    topic_id: InKey[UUID]
    partition: InKey[int]
    state_epoch: Natural = 0  # raised by every writer except the leader
    leader_epoch: OrMinusOne = -1  # of the leader that wrote last; -1: none has
    start_offset: OrMinusOne = NO_START_OFFSET
    # Ascending, none overlaps, all from start_offset on.
    batches: Annotated[tuple[StateBatch, ...], Stored(_read_batches, _write_batches)] = ()


def merge_batches(batches: Sequence[StateBatch]) -> tuple[StateBatch, ...]:
    """Return the same states in as few rows as they fit. The batches ascend."""
    merged: list[StateBatch] = []
    for batch in batches:
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.last_offset + 1 == batch.first_offset
            and last[2:] == batch[2:]
        ):
            merged[-1] = last._replace(last_offset=batch.last_offset)
        else:
            merged.append(batch)
    return tuple(merged)
