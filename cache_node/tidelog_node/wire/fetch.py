"""Fetch requests, versions 4 to 18.

    request   4-14 replica id:32, max wait ms:32, min bytes:32, max bytes:32, isolation:8,
              7+ session id:32, session epoch:32,
              [topic name (13+: id), [partition:32, 9+ leader epoch:32, fetch offset:64,
              12+ last fetched epoch:32, 5+ log start offset:64, max bytes:32]],
              7+ forgotten topics, 11+ rack; 12+ tag 0: cluster id, 15+ tag 1: replica id, epoch

Source: FetchRequest.json; KIP-74, KIP-227, KIP-320, KIP-482, KIP-516, KIP-903.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog_core.fetch_epochs import FINAL_EPOCH, NO_SESSION

from tidelog_node.wire.primitives import (
    ELEMENTS_UNBOUNDED,
    INT32,
    MalformedRequest,
    read_array_length,
    read_compact_array_length,
    read_compact_string,
    read_string,
    read_tag_count,
    read_topic,
    read_uvarint,
    skip_tagged_fields,
    spend,
    write_compact_nullable_string,
    write_string,
    write_uvarint,
)

API_KEY = 1
VERSION_MIN = 4
VERSION_MAX = 18
SESSIONS_FROM = 7
FLEXIBLE_FROM = 12
TOPIC_ID_FROM = 13
REPLICA_STATE_FROM = 15


_LIMITS = struct.Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
_SESSION = struct.Struct(">ii")
_PARTITION_V4 = struct.Struct(">iqi")
_PARTITION_V5 = struct.Struct(">iqqi")
_PARTITION_V9 = struct.Struct(">iiqqi")
_PARTITION_V12 = struct.Struct(">iiqiqi")
_UNTAGGED_V12 = struct.Struct(">iiqiqix")  # with the count of its tagged fields, which is 0
_REPLICA_STATE = struct.Struct(">iq")


class FetchPartition(NamedTuple):
    """One partition that the client wants to read."""

    partition: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int
    bytes_max: int


# One topic of a request: its name (or id) as sent, and its partitions.
FetchTopic = tuple[bytes, list[FetchPartition]]
# Partitions of one topic to remove from the session: the topic's name (or id) as sent, indexes.
ForgottenTopic = tuple[bytes, list[int]]


@dataclass(slots=True)
class FetchRequest:
    """A parsed request."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    rack: bytes = b""  # of the consumer
    replica_epoch: int = -1  # of the follower: the version of its registration
    element_count: int = field(default=1, compare=False)  # topics, partitions, forgotten ones
    forgotten: list[ForgottenTopic] = field(default_factory=list)


FetchHead = tuple[int, int, int, int, int, int, int]
"""Replica id, max wait ms, min bytes, max bytes, isolation level, session id, session epoch.

The replica id is -1 from version 15 on. A plain tuple, because each request creates one.
"""


def parse_fetch_head(frame: memoryview, position: int, version: int) -> tuple[FetchHead, int]:
    """Return the head of the request whose body starts at ``position``, and the head's end.

    Raises ``struct.error``.
    """
    replica_id = -1
    if version < REPLICA_STATE_FROM:
        (replica_id,) = INT32.unpack_from(frame, position)
        position += 4
    max_wait_ms, min_bytes, max_bytes, isolation_level = _LIMITS.unpack_from(frame, position)
    position += 13
    session_id, session_epoch = NO_SESSION, FINAL_EPOCH
    if version >= SESSIONS_FROM:
        session_id, session_epoch = _SESSION.unpack_from(frame, position)
        position += 8
    head = (replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level)
    return (*head, session_id, session_epoch), position


def parse_fetch(
    frame: memoryview, position: int, version: int, elements_max: int = ELEMENTS_UNBOUNDED
) -> FetchRequest:
    """Return the request whose body starts at ``position``.

    Raises one of ``PARSE_ERRORS``, and ``TooManyElements`` beyond ``elements_max`` topics and
    partitions, forgotten ones included.
    """
    head, position = parse_fetch_head(frame, position, version)
    replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, epoch = head
    replica_epoch = -1
    if version >= FLEXIBLE_FROM:
        topics, forgotten, rack, position, left = _parse_flexible_topics(
            frame, position, version, elements_max
        )
        if frame[position]:
            in_state = _parse_replica_state(frame, position)
            if version >= REPLICA_STATE_FROM:
                replica_id, replica_epoch = in_state
    else:
        topics, forgotten, rack, left = _parse_plain_topics(frame, position, version, elements_max)
    return FetchRequest(
        replica_id,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        epoch,
        topics,
        rack,
        replica_epoch,
        elements_max - left,
        forgotten,
    )


def _parse_plain_topics(
    frame: memoryview, position: int, version: int, left: int
) -> tuple[list[FetchTopic], list[ForgottenTopic], bytes, int]:
    topic_count, position = read_array_length(frame, position)
    left = spend(left, topic_count)
    topics: list[FetchTopic] = []
    for _ in range(topic_count):
        name, position = read_string(frame, position)
        partition_count, position = read_array_length(frame, position)
        left = spend(left, partition_count)
        entry = _PARTITION_V9 if version >= 9 else _PARTITION_V5 if version >= 5 else _PARTITION_V4
        end = position + entry.size * partition_count
        if end > len(frame):
            raise MalformedRequest("partitions do not fit their request")
        entries = entry.iter_unpack(frame[position:end])
        if version >= 9:
            partitions = [FetchPartition(i, e, o, -1, s, b) for i, e, o, s, b in entries]
        elif version >= 5:
            partitions = [FetchPartition(i, -1, o, -1, s, b) for i, o, s, b in entries]
        else:
            partitions = [FetchPartition(i, -1, o, -1, -1, b) for i, o, b in entries]
        position = end
        topics.append((name, partitions))
    forgotten: list[ForgottenTopic] = []
    if version >= SESSIONS_FROM:
        topic_count, position = read_array_length(frame, position)
        left = spend(left, topic_count)
        for _ in range(topic_count):
            name, position = read_string(frame, position)
            partition_count, position = read_array_length(frame, position)
            left = spend(left, partition_count)
            indexes, position = _parse_indexes(frame, position, partition_count)
            forgotten.append((name, indexes))
    rack = b""
    if version >= 11:
        rack, position = read_string(frame, position)
    return topics, forgotten, rack, left


def _parse_indexes(frame: memoryview, position: int, count: int) -> tuple[list[int], int]:
    end = position + 4 * count
    if end > len(frame):
        raise MalformedRequest("forgotten partitions do not fit their request")
    return [index for (index,) in INT32.iter_unpack(frame[position:end])], end


def _parse_flexible_topics(
    frame: memoryview, position: int, version: int, left: int
) -> tuple[list[FetchTopic], list[ForgottenTopic], bytes, int, int]:
    has_topic_ids = version >= TOPIC_ID_FROM
    topic_count, position = read_compact_array_length(frame, position)
    left = spend(left, topic_count)
    topics: list[FetchTopic] = []
    for _ in range(topic_count):
        name, position = read_topic(frame, position, is_id=has_topic_ids)
        partition_count, position = read_compact_array_length(frame, position)
        left = spend(left, partition_count)
        partitions, position = _parse_flexible_partitions(frame, position, partition_count)
        position = skip_tagged_fields(frame, position)
        topics.append((name, partitions))
    forgotten: list[ForgottenTopic] = []
    topic_count, position = read_compact_array_length(frame, position)
    left = spend(left, topic_count)
    for _ in range(topic_count):
        name, position = read_topic(frame, position, is_id=has_topic_ids)
        partition_count, position = read_compact_array_length(frame, position)
        left = spend(left, partition_count)
        indexes, position = _parse_indexes(frame, position, partition_count)
        position = skip_tagged_fields(frame, position)
        forgotten.append((name, indexes))
    rack, position = read_compact_string(frame, position)
    if position >= len(frame):
        raise MalformedRequest("the request ends early")
    return topics, forgotten, rack, position, left


def _parse_flexible_partitions(
    frame: memoryview, position: int, count: int
) -> tuple[list[FetchPartition], int]:
    size_bytes = _UNTAGGED_V12.size
    end = position + size_bytes * count
    # A zero count means that the next entry begins right after it, so zeros at all of these
    # positions prove that no entry has tagged fields.
    tag_counts = bytes(frame[position + size_bytes - 1 : end : size_bytes])
    if end <= len(frame) and tag_counts.count(0) == count:
        return [*map(FetchPartition._make, _UNTAGGED_V12.iter_unpack(frame[position:end]))], end
    partitions: list[FetchPartition] = []
    for _ in range(count):
        partitions.append(FetchPartition(*_PARTITION_V12.unpack_from(frame, position)))
        position = skip_tagged_fields(frame, position + _PARTITION_V12.size)
    return partitions, position


def _parse_replica_state(frame: memoryview, position: int) -> tuple[int, int]:
    """Return the id and epoch of the replica state (tag 1), -1 for both if it is absent."""
    field_count, position = read_tag_count(frame, position)
    replica_id = replica_epoch = -1
    for _ in range(field_count):
        tag, position = read_uvarint(frame, position)
        size, position = read_uvarint(frame, position)
        if tag == 1:
            replica_id, replica_epoch = _REPLICA_STATE.unpack_from(frame, position)
        position += size
    if position > len(frame):
        raise MalformedRequest("a tagged field does not fit its request")
    return replica_id, replica_epoch


def write_topic_head(out: bytearray, version: int, name: bytes, partition_count: int) -> None:
    """Append the head of a topic, for a request or a response: name or id, partition count."""
    if version >= TOPIC_ID_FROM:
        out += name
    elif version >= FLEXIBLE_FROM:
        write_compact_nullable_string(out, name)
    else:
        write_string(out, name)
    write_count(out, version, partition_count)


def write_count(out: bytearray, version: int, count: int) -> None:
    """Append the element count of an array."""
    if version >= FLEXIBLE_FROM:
        write_uvarint(out, count + 1)
    else:
        out += INT32.pack(count)


def encode_entry(version: int, wanted: FetchPartition) -> bytes:
    """Return the encoded partition of a request, without tagged fields."""
    index, leader_epoch, offset, last_epoch, start, bytes_max = wanted
    if version >= FLEXIBLE_FROM:
        return _UNTAGGED_V12.pack(index, leader_epoch, offset, last_epoch, start, bytes_max)
    if version >= 9:
        return _PARTITION_V9.pack(index, leader_epoch, offset, start, bytes_max)
    if version >= 5:
        return _PARTITION_V5.pack(index, offset, start, bytes_max)
    return _PARTITION_V4.pack(index, offset, bytes_max)


def parse_entry(version: int, data: bytes) -> FetchPartition:
    """Return the partition that ``encode_entry`` encoded as ``data``."""
    if version >= FLEXIBLE_FROM:
        return FetchPartition(*_UNTAGGED_V12.unpack(data))
    if version >= 9:
        index, leader_epoch, offset, start, bytes_max = _PARTITION_V9.unpack(data)
        return FetchPartition(index, leader_epoch, offset, -1, start, bytes_max)
    if version >= 5:
        index, offset, start, bytes_max = _PARTITION_V5.unpack(data)
        return FetchPartition(index, -1, offset, -1, start, bytes_max)
    index, offset, bytes_max = _PARTITION_V4.unpack(data)
    return FetchPartition(index, -1, offset, -1, -1, bytes_max)
