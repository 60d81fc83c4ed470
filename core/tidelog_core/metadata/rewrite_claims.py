"""Who may replace a partition's tiered segments with rewritten ones.

    collection      key                                     value
    rewrite-claim   <topic id>:<partition, 10 digits>       RewriteClaim

The item stays when its holder is through: the epochs of a partition's claims must grow. It is
logged with every swap, and only then: by that nodes learn that the segments are others.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from uuid import UUID

from tidelog_core.metadata.body import BodyReader
from tidelog_core.metadata.records import NUMBER_DIGITS
from tidelog_core.metadata.store import ABSENT, Body, Item, ItemKey

REWRITE_CLAIM_COLLECTION = "rewrite-claim"
RELEASED_MS = 0  # as expires_ms: nobody holds it


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteClaim:
    """One process's claim on a partition's tiered segments."""

    topic_id: UUID
    partition: int
    rewrite_epoch: int  # greater with every claim, and than that of every segment there was
    holder: UUID  # another one with every run
    expires_ms: int  # Unix time from which others may take it; RELEASED_MS: at once
    version: int = dataclasses.field(default=ABSENT, compare=False)

    @property
    def item_id(self) -> ItemKey:
        """The item's key."""
        return rewrite_claim_key(self.topic_id, self.partition)

    def to_body(self) -> Body:
        """Return the item's body."""
        return {
            "topic_id": str(self.topic_id),
            "partition": self.partition,
            "rewrite_epoch": self.rewrite_epoch,
            "holder": str(self.holder),
            "expires_ms": self.expires_ms,
        }

    @classmethod
    def from_item(cls, item: Item) -> RewriteClaim:
        """Return the record. Raises ``CorruptItem``."""
        fields = BodyReader(item)
        record = cls(
            topic_id=fields.uuid("topic_id"),
            partition=fields.integer("partition", at_least=0),
            rewrite_epoch=fields.integer("rewrite_epoch", at_least=1),
            holder=fields.uuid("holder"),
            expires_ms=fields.integer("expires_ms", at_least=0),
            version=item.version,
        )
        fields.finish()
        if record.item_id != item.id:
            raise fields.error(f"holds another claim: {record.item_id.key}")
        return record


def claimed_partition(key: ItemKey) -> tuple[UUID, int] | None:
    """Return the topic's id and the partition of a claim's key, ``None`` for another key."""
    topic_id, _, partition = key.key.partition(":")
    try:
        return UUID(topic_id), int(partition)
    except ValueError:
        return None


def rewrite_claim_key(topic_id: UUID, partition: int) -> ItemKey:
    """Return where the partition's claim lies."""
    return ItemKey(REWRITE_CLAIM_COLLECTION, f"{topic_id}:{partition:0{NUMBER_DIGITS}d}")
