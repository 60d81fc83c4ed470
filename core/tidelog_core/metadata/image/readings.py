"""Reads the items of an image, and notes those that cannot be read.

For a partition whose item is unreadable the image has a stand-in. The item may hold anything by
now, such as another leader or other replicas. So the stand-in has no leader and no ISR, and every
conditional write that expects its version conflicts. Replicas, leader epoch and log start are those
of the last readable record, so nodes keep their logs. If no record was ever readable, the stand-in
has no replicas, and nodes with files of the partition leave them alone.

An item that is damaged at an already known version needs no stand-in: its record is known, and
the next write repairs it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TypeVar
from uuid import UUID

from tidelog_core.errors import CorruptItem
from tidelog_core.metadata.record import Record
from tidelog_core.metadata.records import Partition
from tidelog_core.metadata.store import UNREADABLE_VERSION, Item, ItemKey
from tidelog_core.model import NO_LEADER

R = TypeVar("R", bound=Record)


class Readings:
    """Decodes items; notes the unreadable ones with their last readable value."""

    def __init__(self, unreadable: Mapping[ItemKey, str]) -> None:
        self.unreadable = dict(unreadable)

    def record(
        self, key: ItemKey, item: Item | None, read: Callable[[Item], R], before: R | None
    ) -> R | None:
        """Return the item's record, ``None`` if it is removed, ``before`` if it is damaged."""
        self.unreadable.pop(key, None)
        if item is None:
            return None
        try:
            return read(item)
        except CorruptItem as error:
            self.unreadable[key] = error.problem
            return before

    def note_key(self, key: ItemKey, item: Item | None) -> None:
        """Note an item whose key is not of the collection's form."""
        self.unreadable.pop(key, None)
        if item is not None:
            self.unreadable[key] = "its key is none of this collection's"

    def partition(
        self, key: ItemKey, item: Item | None, topic_id: UUID, before: Partition | None
    ) -> Partition:
        """Return the partition's record, or a stand-in.

        ``item`` is ``None`` if it is missing although the topic counts it.
        """
        found = self.record(key, item, Partition.from_item, None)
        if found is not None:
            return found
        if item is None:
            self.unreadable[key] = "it is not there, though its topic counts it"
        elif before is not None and before.version == item.version:
            return before
        if before is not None and not is_readable(before):
            return before
        return stand_in(topic_id, int(key.key), before)


def stand_in(topic_id: UUID, partition: int, before: Partition | None) -> Partition:
    """Return the stand-in; ``before`` is the partition's last record or stand-in."""
    if before is None:
        return Partition(
            topic_id=topic_id,
            partition=partition,
            replicas=(),
            leader=NO_LEADER,
            leader_epoch=0,
            isr=(),
            version=UNREADABLE_VERSION,
        )
    return dataclasses.replace(
        before, leader=NO_LEADER, isr=(), adding=(), removing=(), version=UNREADABLE_VERSION
    )


def is_readable(partition: Partition) -> bool:
    """Whether this is the record of an item, not a stand-in."""
    return partition.version != UNREADABLE_VERSION
