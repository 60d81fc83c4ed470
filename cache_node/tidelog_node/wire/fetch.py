"""Fetch, versions 4 to 18; records leave as slices of log files.

A response is a list of segments in the order they go out: encoded bytes, and file
slices that the connection sends with ``sendfile`` without reading them.

    request   4-14 replica id:32, max wait ms:32, min bytes:32, max bytes:32, isolation:8,
              7+ session id:32, session epoch:32,
              [topic name (13+: id), [partition:32, 9+ leader epoch:32, fetch offset:64,
              12+ last fetched epoch:32, 5+ log start offset:64, max bytes:32]],
              7+ forgotten topics, 11+ rack; 12+ tag 0: cluster id, 15+ tag 1: replica id, epoch
    response  throttle ms:32, 7+ error:16, session id:32,
              [topic, [partition:32, error:16, high watermark:64, last stable offset:64,
              5+ log start offset:64, [aborted producer id:64, first offset:64],
              11+ preferred replica:32, records, 12+ tag 0: diverging epoch, tag 1: leader]],
              16+ tag 0: endpoints of those leaders

Source: FetchRequest.json and FetchResponse.json; KIP-74, KIP-227, KIP-320, KIP-482,
KIP-516, KIP-595, KIP-903, KIP-951.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog_core.fetch_epochs import FINAL_EPOCH, NO_SESSION
from tidelog_core.model import FileSlice

from tidelog_node.owed_reply import Reply
from tidelog_node.wire.primitives import (
    ELEMENTS_UNBOUNDED,
    INT32,
    MalformedRequest,
    read_array_length,
    read_compact_array_length,
    read_compact_string,
    read_string,
    read_tag_count,
    read_uvarint,
    skip_tagged_fields,
    spend,
    write_compact_nullable_string,
    write_string,
    write_uvarint,
)
from tidelog_node.wire.produce import Endpoint, write_endpoints_tag

API_KEY = 1
VERSION_MIN = 4
VERSION_MAX = 18
SESSIONS_FROM = 7
FLEXIBLE_FROM = 12
TOPIC_ID_FROM = 13
REPLICA_STATE_FROM = 15


# Below this many bytes one pread and a gathered send beat a sendfile call of their own.
SENDFILE_BYTES_MIN = 65_536

_LIMITS = struct.Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
_SESSION = struct.Struct(">ii")
_PARTITION_V4 = struct.Struct(">iqi")
_PARTITION_V5 = struct.Struct(">iqqi")
_PARTITION_V9 = struct.Struct(">iiqqi")
_PARTITION_V12 = struct.Struct(">iiqiqi")
_UNTAGGED_V12 = struct.Struct(">iiqiqix")  # with the count of its tagged fields, which is 0
_RESULT_V4 = struct.Struct(">ihqq")
_RESULT_V5 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_EPOCH_OFFSET = struct.Struct(">iq")
_LEADER = struct.Struct(">ii")
_REPLICA_STATE = struct.Struct(">iq")
_SIZE_CORRELATION = struct.Struct(">ii")
_TOP = struct.Struct(">ihi")  # throttle, error, session id
# A result with no more than what it begins with, as nearly all are of a request that names many.
_EMPTY_V11 = struct.Struct(">ihqqqiii")  # aborted transactions, preferred replica, records
_EMPTY_V12 = struct.Struct(">ihqqqBiBB")  # and tagged fields
_NULL_ARRAY = b"\xff\xff\xff\xff"


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
# One topic of which the session lets partitions go: its name (or id) as sent, and which.
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


class FetchResult(NamedTuple):
    """What one partition answers."""

    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: FileSlice | None = None  # ``None`` is «no records»
    aborted: Sequence[tuple[int, int]] | None = None  # (producer id, first offset)
    diverging: tuple[int, int] | None = None  # (epoch, end offset)
    leader_id: int = -1  # -1 leaves the current leader out
    leader_epoch: int = -1
    preferred_replica: int = -1  # where the consumer had better read; -1: here


def _is_empty(result: FetchResult) -> bool:
    """Whether a result has no more than what it begins with."""
    return (
        result[5] is None
        and result[6] is None
        and result[7] is None
        and result[8] < 0
        and result[10] < 0
    )


def parse_fetch(
    frame: memoryview, position: int, version: int, elements_max: int = ELEMENTS_UNBOUNDED
) -> FetchRequest:
    """Return the request whose body starts at ``position``.

    Raises one of ``PARSE_ERRORS``, and ``TooManyElements`` for more topics and partitions.
    """
    replica_id = replica_epoch = -1
    if version < REPLICA_STATE_FROM:
        (replica_id,) = INT32.unpack_from(frame, position)
        position += 4
    max_wait_ms, min_bytes, max_bytes, isolation_level = _LIMITS.unpack_from(frame, position)
    position += 13
    session_id, session_epoch = NO_SESSION, FINAL_EPOCH
    if version >= SESSIONS_FROM:
        session_id, session_epoch = _SESSION.unpack_from(frame, position)
        position += 8
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
        session_epoch,
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
        if has_topic_ids:
            name = bytes(frame[position : position + 16])
            position += 16
        else:
            name, position = read_compact_string(frame, position)
        partition_count, position = read_compact_array_length(frame, position)
        left = spend(left, partition_count)
        partitions, position = _parse_flexible_partitions(frame, position, partition_count)
        position = skip_tagged_fields(frame, position)
        topics.append((name, partitions))
    forgotten: list[ForgottenTopic] = []
    topic_count, position = read_compact_array_length(frame, position)
    left = spend(left, topic_count)
    for _ in range(topic_count):
        if has_topic_ids:
            name = bytes(frame[position : position + 16])
            position += 16
        else:
            name, position = read_compact_string(frame, position)
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
    # Where the first has no tagged fields the second is behind it, and so on.
    tag_counts = bytes(frame[position + size_bytes - 1 : end : size_bytes])
    if end <= len(frame) and tag_counts.count(0) == count:
        return [*map(FetchPartition._make, _UNTAGGED_V12.iter_unpack(frame[position:end]))], end
    partitions: list[FetchPartition] = []
    for _ in range(count):
        partitions.append(FetchPartition(*_PARTITION_V12.unpack_from(frame, position)))
        position = skip_tagged_fields(frame, position + _PARTITION_V12.size)
    return partitions, position


def _parse_replica_state(frame: memoryview, position: int) -> tuple[int, int]:
    """Return id and epoch of the replica state, tag 1, or -1 where it is not there."""
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


def encode_fetch(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[bytes, Sequence[FetchResult]]],
    *,
    error_code: int = 0,
    session_id: int = NO_SESSION,
    endpoints: Sequence[Endpoint] = (),
) -> Reply:
    """Return the whole response in segments, its size and header included.

    Slices below ``SENDFILE_BYTES_MIN`` are read here and now.
    """
    is_flexible = version >= FLEXIBLE_FROM
    head = bytearray(9 if is_flexible else 8)
    if version >= SESSIONS_FROM:
        head += _TOP.pack(0, error_code, session_id)
    else:
        head += b"\x00\x00\x00\x00"
    segments: list[bytes | bytearray | FileSlice] = [head]
    if is_flexible:
        size_bytes = _encode_flexible(segments, version, topics, endpoints)
    else:
        size_bytes = _encode_plain(segments, version, topics)
    _SIZE_CORRELATION.pack_into(head, 0, size_bytes - 4, correlation_id)
    return segments


def _encode_plain(
    segments: list[bytes | bytearray | FileSlice],
    version: int,
    topics: Sequence[tuple[bytes, Sequence[FetchResult]]],
) -> int:
    out = segments[0]
    assert isinstance(out, bytearray)
    sent_size_bytes = 0
    out += INT32.pack(len(topics))
    for name, results in topics:
        write_string(out, name)
        out += INT32.pack(len(results))
        for result in results:
            if version >= 11 and _is_empty(result):
                index, code, high_watermark, stable, start = result[:5]
                out += _EMPTY_V11.pack(index, code, high_watermark, stable, start, -1, -1, 0)
                continue
            if version >= 5:
                out += _RESULT_V5.pack(*result[:5])
            else:
                out += _RESULT_V4.pack(*result[:4])
            if result.aborted is None:
                out += _NULL_ARRAY
            else:
                out += INT32.pack(len(result.aborted))
                for producer_id, first_offset in result.aborted:
                    out += _ABORTED.pack(producer_id, first_offset)
            if version >= 11:
                out += INT32.pack(result.preferred_replica)
            records = result.records
            if records is None:
                out += b"\x00\x00\x00\x00"
                continue
            out += INT32.pack(records.size_bytes)
            segments.append(slice_segment(records))
            sent_size_bytes += len(out) + records.size_bytes
            out = bytearray()
            segments.append(out)
    return _finish(segments, out, sent_size_bytes)


def _encode_flexible(
    segments: list[bytes | bytearray | FileSlice],
    version: int,
    topics: Sequence[tuple[bytes, Sequence[FetchResult]]],
    endpoints: Sequence[Endpoint],
) -> int:
    out = segments[0]
    assert isinstance(out, bytearray)
    sent_size_bytes = 0
    write_uvarint(out, len(topics) + 1)
    for name, results in topics:
        if version >= TOPIC_ID_FROM:
            out += name
        else:
            write_compact_nullable_string(out, name)
        write_uvarint(out, len(results) + 1)
        for result in results:
            if _is_empty(result):
                index, code, high_watermark, stable, start = result[:5]
                out += _EMPTY_V12.pack(index, code, high_watermark, stable, start, 0, -1, 1, 0)
                continue
            out += _RESULT_V5.pack(*result[:5])
            if result.aborted is None:
                out.append(0)
            else:
                write_uvarint(out, len(result.aborted) + 1)
                for producer_id, first_offset in result.aborted:
                    out += _ABORTED.pack(producer_id, first_offset)
                    out.append(0)
            out += INT32.pack(result.preferred_replica)
            records = result.records
            if records is None:
                out.append(1)
            else:
                write_uvarint(out, records.size_bytes + 1)
                segments.append(slice_segment(records))
                sent_size_bytes += len(out) + records.size_bytes
                out = bytearray()
                segments.append(out)
            _write_partition_tags(out, result)
        out.append(0)
    if version >= 16 and endpoints:
        write_endpoints_tag(out, endpoints)
    else:
        out.append(0)
    return _finish(segments, out, sent_size_bytes)


def _write_partition_tags(out: bytearray, result: FetchResult) -> None:
    if result.diverging is None and result.leader_id < 0:
        out.append(0)
        return
    out.append((result.diverging is not None) + (result.leader_id >= 0))
    if result.diverging is not None:
        out += b"\x00\x0d"  # tag 0, 13 bytes
        out += _EPOCH_OFFSET.pack(*result.diverging)
        out.append(0)
    if result.leader_id >= 0:
        out += b"\x01\x09"  # tag 1, 9 bytes
        out += _LEADER.pack(result.leader_id, result.leader_epoch)
        out.append(0)


def _finish(
    segments: list[bytes | bytearray | FileSlice], out: bytearray, sent_size_bytes: int
) -> int:
    if not out and len(segments) > 1:
        segments.pop()  # nothing followed the last slice
    return sent_size_bytes + len(out)


def slice_segment(records: FileSlice) -> bytes | FileSlice:
    """Return what to send for the slice: its bytes if they are few. Raises ``OSError``."""
    if records.size_bytes >= SENDFILE_BYTES_MIN:
        return records
    data = os.pread(records.file.fileno(), records.size_bytes, records.position)
    if len(data) != records.size_bytes:
        raise OSError(f"{records.file.path} ends before byte {records.position + len(data)}")
    return data
