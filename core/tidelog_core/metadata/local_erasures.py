"""That replicas are to let go of local segments, since records in them are being erased.

    collection      key                                     value
    local-erasure   <topic id>:<partition, 10 digits>       LocalErasure

Written by whoever erases. The leader says up to which offset; each replica says when it has
nothing local below that. One that is down finds the item when it comes back.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from uuid import UUID

from tidelog_core.metadata.body import BodyReader
from tidelog_core.metadata.records import NUMBER_DIGITS
from tidelog_core.metadata.store import ABSENT, Body, Item, ItemKey

LOCAL_ERASURE_COLLECTION = "local-erasure"
NOT_TAKEN_UP = -1  # as up_to: the leader has not seen it yet


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalErasure:
    """A request that no replica keeps local segments with offsets below ``up_to``."""

    topic_id: UUID
    partition: int
    up_to: int = NOT_TAKEN_UP  # exclusive; the log's end when its leader took the request up
    # The leader is to roll here or later: a replica has a segment that ends here, and that
    # it may drop only once the tier has all of it.
    roll_to: int = 0
    honoured: tuple[int, ...] = ()  # brokers that have nothing local below up_to
    version: int = dataclasses.field(default=ABSENT, compare=False)

    @property
    def item_id(self) -> ItemKey:
        """The item's key."""
        return local_erasure_key(self.topic_id, self.partition)

    @property
    def is_taken_up(self) -> bool:
        """Whether the leader has said up to where."""
        return self.up_to != NOT_TAKEN_UP

    def to_body(self) -> Body:
        """Return the item's body."""
        return {
            "topic_id": str(self.topic_id),
            "partition": self.partition,
            "up_to": self.up_to,
            "roll_to": self.roll_to,
            "honoured": list(self.honoured),
        }

    @classmethod
    def from_item(cls, item: Item) -> LocalErasure:
        """Return the record. Raises ``CorruptItem``."""
        fields = BodyReader(item)
        record = cls(
            topic_id=fields.uuid("topic_id"),
            partition=fields.integer("partition", at_least=0),
            up_to=fields.integer("up_to", at_least=NOT_TAKEN_UP),
            roll_to=fields.integer("roll_to", at_least=0),
            honoured=fields.integers("honoured"),
            version=item.version,
        )
        fields.finish()
        if record.item_id != item.id:
            raise fields.error(f"holds another partition's: {record.item_id.key}")
        return record


def local_erasure_key(topic_id: UUID, partition: int) -> ItemKey:
    """Return where the partition's request lies."""
    return ItemKey(LOCAL_ERASURE_COLLECTION, f"{topic_id}:{partition:0{NUMBER_DIGITS}d}")
