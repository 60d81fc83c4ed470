"""What a consumer hands out and takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tidelog_core.records.batch import Headers


class ConsumerRecord(NamedTuple):
    """A record and where it stands. A named tuple: one is made for every record."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    is_log_append_time: bool  # whether the timestamp is the node's, not the producer's


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """What a group has committed for a partition: the offset of the next record to read."""

    offset: int
    leader_epoch: int = -1  # of the last record read, -1 if not known
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """The first record at or after a time."""

    offset: int
    timestamp_ms: int
