"""Reads the items of an image, and notes those that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar
from uuid import UUID

from tidelog_core.errors import CorruptItem
from tidelog_core.metadata.record import Record
from tidelog_core.metadata.records import Partition
from tidelog_core.metadata.stand_in import is_readable, stand_in
from tidelog_core.metadata.store import Item, ItemKey

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
