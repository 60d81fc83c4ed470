"""Values that a consumer returns and accepts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tidelog_core.model import TopicPartition
from tidelog_core.records.batch import Headers


class ConsumerRecord(NamedTuple):
    """A record with its position. A named tuple, because one is made for every record."""

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
    """A committed offset: the offset of the next record to read."""

    offset: int
    leader_epoch: int = -1  # of the last record read, -1 if not known
    metadata: str = ""


# Two types, because mapping keys are invariant: the SDK's TopicPartition, and the user's tuples.
Offsets: TypeAlias = (
    Mapping[TopicPartition, OffsetAndMetadata] | Mapping[tuple[str, int], int | OffsetAndMetadata]
)
"""Next offsets by partition."""


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A consumer's identity in its group, with which a transaction commits its offsets."""

    group_id: str
    generation: int = -1  # -1: not a member, its partitions were assigned by hand
    member_id: str = ""
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """The first record at or after a time."""

    offset: int
    timestamp_ms: int
