"""Where Kafka's clients put the records of a key, by an implementation that is not ours."""

from __future__ import annotations

from aiokafka.partitioner import murmur2


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Return the partition in which every Kafka client puts records of this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
