"""The plain values that all parts of Tidelog share.

Ranges of offsets are half open, ``[start, end)``, everywhere in Tidelog.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NewType

Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
BrokerId = NewType("BrokerId", int)
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)

NO_OFFSET = Offset(-1)
NO_LEADER = BrokerId(-1)
NO_LEADER_EPOCH = LeaderEpoch(-1)
NO_PRODUCER_ID = ProducerId(-1)
NO_PRODUCER_EPOCH = ProducerEpoch(-1)
NO_SEQUENCE = -1
NO_TIMESTAMP = -1

# The largest numbers that Kafka's protocol has for an int and a long.
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

CONSUMER_OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
RESERVED_TOPICS = frozenset({CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC})


@dataclass(frozen=True, slots=True)
class Principal:
    """A client's identity; ``ANONYMOUS`` without authentication."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


USER_KIND = "User"  # of a principal: a client, by the name that it has proved
ANONYMOUS = Principal(USER_KIND, "ANONYMOUS")  # a client that did not authenticate


class TopicPartition(NamedTuple):
    """One partition of a topic, by the topic's name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ReadableFile:
    """A file descriptor that is closed when its last holder releases it.

    The file may be unlinked while a response is being sent. The descriptor stays open until
    then, so no reader gets another file under the same number.
    """

    __slots__ = ("__weakref__", "_fd", "path")

    def __init__(self, path: Path, *, flags: int = os.O_RDONLY) -> None:
        """Open the file; ``flags`` as ``os.open`` takes them."""
        self._fd = -1  # Set first: __del__ runs even when the open below fails.
        self.path = path
        self._fd = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def fileno(self) -> int:
        """Return the open descriptor, valid as long as this object is held."""
        return self._fd

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@dataclass(frozen=True, slots=True)
class FileSlice:
    """A run of bytes ``[position, position + size_bytes)`` of an open file."""

    file: ReadableFile
    position: int
    size_bytes: int
