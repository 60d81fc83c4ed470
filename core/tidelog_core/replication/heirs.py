"""Chooses the node that leads a diskless partition next. Any live node may: none holds records.

Every node ranks the live brokers by a hash of partition and broker, and the first one takes the
partition (rendezvous hashing). So all nodes that see the same brokers make the same choice without
a word, the partitions of a dead broker are spread over all others, and a broker that comes or goes
moves only its own share. Nodes that see different brokers may choose two heirs: the conditional
write settles it, and chains keep it safe.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from hashlib import blake2b

from tidelog_core.metadata.records import Partition, Topic

DISKLESS_ENABLE = "diskless.enable"  # every diskless topic has it among its own settings
_PLACE = struct.Struct(">16sii")


def is_diskless(topic: Topic) -> bool:
    """Return whether any live broker may lead the topic's partitions."""
    return topic.configs.get(DISKLESS_ENABLE) == "true"


def heir_of(partition: Partition, brokers: Iterable[int]) -> int | None:
    """Return the broker that should lead the partition, ``None`` if there are no brokers."""
    return max(brokers, key=lambda broker_id: _rank(partition, broker_id), default=None)


def spread_rank(partition: Partition) -> bytes:
    """Return a key that puts partitions in an order which mixes the topics."""
    return blake2b(
        _PLACE.pack(partition.topic_id.bytes, partition.partition, -1), digest_size=8
    ).digest()


def _rank(partition: Partition, broker_id: int) -> tuple[bytes, int]:
    place = _PLACE.pack(partition.topic_id.bytes, partition.partition, broker_id)
    return blake2b(place, digest_size=8).digest(), broker_id
