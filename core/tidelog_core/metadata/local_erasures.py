"""The request that replicas drop local segments while records in them are being erased.

The erasing process writes it. The leader adds the offset; each replica adds itself when it has
nothing local below that offset. A replica that is down finds the item when it starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from tidelog_core.metadata.fields import Natural, OrMinusOne
from tidelog_core.metadata.record import Record, key_form
from tidelog_core.metadata.records import NUMBER_DIGITS
from tidelog_core.metadata.store import ItemKey

LOCAL_ERASURE_COLLECTION = "local-erasure"
NOT_TAKEN_UP = -1  # as up_to: the leader has not seen it yet


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
