"""Partitioners: they choose a partition for each record sent without one.

A partitioner is made per topic. ``on_batch_filled`` tells it that the current batch is
full: the sticky ones then change the partition, so that records without a key fill few
batches instead of many small ones.
Source: KIP-480 and KIP-794, the sticky partitioner; murmur2 as in every Kafka client.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from tidelog_core.records.murmur2 import murmur2

from tidelog.errors import InvalidConfig, InvalidRequest
from tidelog.options import PARTITIONERS, Partitioner, PartitionerName, one_of

KEYS_REMEMBERED_MAX = 4096


class TopicPartitioner(Protocol):
    """Chooses among the partitions of one topic."""

    # The partition of all records without a key until its batch is full; none if it is below zero
    # or does not exist. Nearly every record is sent there without a call of ``choose``.
    current: int

    def choose(self, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        """Return a partition in ``[0, partition_count)``."""

    def on_batch_filled(self, partition_count: int) -> None:
        """Note that the batch of the last chosen partition is full."""


class Sticky:
    """Keeps one partition for all keys until its batch is full."""

    def __init__(self, topic: str) -> None:
        del topic
        self.current = -1

    def choose(self, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        """Return the current partition."""
        del key, value
        if not 0 <= self.current < partition_count:
            self.current = random.randrange(partition_count)
        return self.current

    def on_batch_filled(self, partition_count: int) -> None:
        """Move to another partition."""
        if partition_count > 1:
            step = random.randrange(1, partition_count)
            self.current = (self.current + step) % partition_count


class Murmur2(Sticky):
    """Chooses by the key's hash; sticky for records without a key."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self._hashes: dict[bytes, int] = {}  # Keys repeat, and the hash is slow in Python.

    def choose(self, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        """Return the partition that every Kafka client chooses for the key."""
        if key is None:
            return super().choose(key, value, partition_count)
        hashed = self._hashes.get(key)
        if hashed is None:
            if len(self._hashes) >= KEYS_REMEMBERED_MAX:
                self._hashes.clear()
            hashed = self._hashes[key] = murmur2(key) & 0x7FFFFFFF
        return hashed % partition_count


class RoundRobin:
    """Sends each record to the next partition, for all keys."""

    def __init__(self, topic: str) -> None:
        del topic
        self.current = -1
        self._next = random.randrange(1 << 16)

    def choose(self, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        """Return the next partition."""
        del key, value
        self._next += 1
        return self._next % partition_count

    def on_batch_filled(self, partition_count: int) -> None:
        """Ignore batches: the choice does not depend on them."""


class Custom:
    """Calls the user's function."""

    def __init__(self, topic: str, function: Partitioner) -> None:
        self._topic, self._function = topic, function
        self.current = -1

    def choose(self, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        """Return the function's choice. Raises ``InvalidRequest`` if it is not a partition."""
        partition = self._function(self._topic, key, value, partition_count)
        if type(partition) is not int or not 0 <= partition < partition_count:
            raise InvalidRequest(
                f"the partitioner chose {partition!r} for topic {self._topic!r}, "
                f"which has partitions 0 to {partition_count - 1}"
            )
        return partition

    def on_batch_filled(self, partition_count: int) -> None:
        """Ignore batches: the choice does not depend on them."""


_BY_NAME: dict[str, Callable[[str], TopicPartitioner]] = {
    "murmur2": Murmur2,
    "sticky": Sticky,
    "round-robin": RoundRobin,
}


def partitioner_factory(
    partitioner: PartitionerName | Partitioner,
) -> Callable[[str], TopicPartitioner]:
    """Return a function that makes a topic's partitioner. Raises ``InvalidConfig``."""
    if callable(partitioner):
        return lambda topic: Custom(topic, partitioner)
    if partitioner not in _BY_NAME:
        raise InvalidConfig(one_of("partitioner", partitioner, (*PARTITIONERS, "a callable")))
    return _BY_NAME[partitioner]
