"""Chooses the node that leads a diskless partition next. Any live node may: none holds it alone.

Every node ranks the live brokers, and the first one takes the partition. Brokers of the ISR come
first, since they have the tail, then others with a replica; the rest is decided by a hash of
partition and broker (rendezvous hashing). A broker whose log has failed leaves the ISR and the
lead; so it is not the first to get the lead again. So all nodes that see the same brokers make the
same choice without a word, the partitions of a dead broker are spread over others, and a broker
that comes or goes moves only its own share. Nodes that see different brokers may choose two heirs:
the conditional write settles it, and chains keep it safe.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable

from tidelog_core.metadata.records import Partition, Topic

DISKLESS_ENABLE = "diskless.enable"  # every topic that is or was diskless has it as its own
_PLACE = struct.Struct(">16sii")


def wants_diskless(topic: Topic) -> bool:
    """Return whether the topic's partitions are to be diskless.

    Each says itself whether it is (``Partition.is_diskless``).
    """
    return topic.configs.get(DISKLESS_ENABLE) == "true"


def heir_of(partition: Partition, brokers: Iterable[int]) -> int | None:
    """Return the broker that should lead the partition, ``None`` if there are no brokers."""
    return max(brokers, key=lambda broker_id: _rank(partition, broker_id), default=None)


def spread_rank(partition: Partition) -> bytes:
    """Return a key that puts partitions in an order which mixes the topics."""
    return hashlib.blake2b(
        _PLACE.pack(partition.topic_id.bytes, partition.partition, -1), digest_size=8
    ).digest()


def replicas_with(partition: Partition, leader: int) -> tuple[int, ...]:
    """Return the partition's replicas once the broker leads, as many as before, it first.

    A broker without a replica gets that of the leader before.
    """
    others = [broker_id for broker_id in partition.replicas if broker_id != leader]
    if leader not in partition.replicas:
        others.sort(key=lambda broker_id: broker_id == partition.leader)  # stable: it comes last
    return (leader, *others)[: len(partition.replicas)]


def _rank(partition: Partition, broker_id: int) -> tuple[bool, bool, bytes, int]:
    place = _PLACE.pack(partition.topic_id.bytes, partition.partition, broker_id)
    rank = hashlib.blake2b(place, digest_size=8).digest()
    return broker_id in partition.isr, broker_id in partition.replicas, rank, broker_id
