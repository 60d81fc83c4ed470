"""ShareFetch, versions 1 and 2; records are sent as slices of log files, as in Fetch.

    request   group, member, session epoch:32, max wait ms:32, min bytes:32, max bytes:32,
              max records:32, batch size:32, 2+ acquire mode:8, 2+ renews:8,
              [topic id, [partition:32, [first offset:64, last offset:64, [type:8]]]],
              [forgotten topic id, [partition:32]]
    response  throttle ms:32, error:16, message, lock ms:32,
              [topic id, [partition:32, error:16, message, acknowledge error:16, message,
              leader id:32, leader epoch:32, records, [first offset:64, last offset:64,
              deliveries:16]]], [endpoint id:32, host, port:32, rack]

All versions are flexible. Source: ShareFetchRequest.json and ShareFetchResponse.json; KIP-932,
KIP-1206 (acquire mode), KIP-1222 (renewal).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog_core.model import FileSlice

from tidelog_node.answers import Reply
from tidelog_node.wire.fetch_answer import slice_segment
from tidelog_node.wire.primitives import (
    ELEMENTS_UNBOUNDED,
    INT16,
    INT32,
    MalformedRequest,
    cut_error_text,
    read_compact_array_length,
    read_compact_nullable_string,
    skip_tagged_fields,
    spend,
    write_compact_nullable_string,
    write_uvarint,
)
from tidelog_node.wire.produce import Endpoint

API_KEY = 78
VERSION_MIN = 1
VERSION_MAX = 2
FLEXIBLE_FROM = 0
ACQUIRE_MODE_FROM = 2

RECORD_LIMIT = 1  # the acquire mode in which the record limit cuts batches; in 0 it does not
_TOPIC_ID_BYTES = 16

_LIMITS = struct.Struct(">iiiiii")
_MODE = struct.Struct(">bb")
_OFFSETS = struct.Struct(">qq")
_ACQUIRED = struct.Struct(">qqhb")  # with no tagged fields
_LEADER = struct.Struct(">iib")  # with no tagged fields
_TOP = struct.Struct(">ih")
_SIZE_CORRELATION = struct.Struct(">ii")

# A topic's id as encoded, and a partition index.
PartitionKey = tuple[bytes, int]


class Acquired(NamedTuple):
    """Acquired records, and how often they have been delivered."""

    first_offset: int
    last_offset: int  # inclusive
    delivery_count: int


class Acknowledgement(NamedTuple):
    """A member's acknowledgement of records: one type for all, or one for each."""

    first_offset: int
    last_offset: int  # inclusive
    types: bytes


@dataclass(slots=True)
class ShareFetchRequest:
    """A parsed request."""

    group_id: str
    member_id: str
    session_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    records_max: int
    batch_size: int
    acquire_mode: int
    renews: bool
    partitions: dict[PartitionKey, list[Acknowledgement]]  # to fetch from; acknowledged before
    forgotten: list[PartitionKey]
    # Topics, partitions and acknowledged batches, forgotten ones included.
    element_count: int = field(default=1, compare=False)

    @property
    def fetches_nothing(self) -> bool:
        """Whether a limit is 0 or less: then not even one batch is returned."""
        return self.max_bytes <= 0 or self.records_max <= 0


class ShareFetchResult(NamedTuple):
    """The result for one partition."""

    error_code: int = 0
    error_message: str | None = None
    acknowledge_error_code: int = 0
    acknowledge_error_message: str | None = None
    leader_id: int = -1  # -1: the leader is not named
    leader_epoch: int = -1
    records: FileSlice | None = None
    acquired: Sequence[Acquired] = ()


def parse_share_fetch(
    frame: memoryview, position: int, version: int, elements_max: int = ELEMENTS_UNBOUNDED
) -> ShareFetchRequest:
    """Return the request whose body starts at ``position``.

    Raises one of ``PARSE_ERRORS``, and ``TooManyElements`` beyond ``elements_max`` topics,
    partitions and acknowledged batches, forgotten ones included.
    """
    group_id, position = read_compact_nullable_string(frame, position)
    member_id, position = read_compact_nullable_string(frame, position)
    epoch, max_wait_ms, min_bytes, max_bytes, records_max, batch_size = _LIMITS.unpack_from(
        frame, position
    )
    position += _LIMITS.size
    acquire_mode, renews = 0, 0
    if version >= ACQUIRE_MODE_FROM:
        acquire_mode, renews = _MODE.unpack_from(frame, position)
        position += _MODE.size
    partitions, position, left = _parse_topics(frame, position, elements_max)
    forgotten, position, left = _parse_forgotten(frame, position, left)
    if skip_tagged_fields(frame, position) > len(frame):
        raise MalformedRequest("the request ends early")
    return ShareFetchRequest(
        (group_id or b"").decode(),
        (member_id or b"").decode(),
        epoch,
        max_wait_ms,
        min_bytes,
        max_bytes,
        records_max,
        batch_size,
        acquire_mode,
        bool(renews),
        partitions,
        forgotten,
        elements_max - left,
    )


def _parse_topics(
    frame: memoryview, position: int, left: int
) -> tuple[dict[PartitionKey, list[Acknowledgement]], int, int]:
    partitions: dict[PartitionKey, list[Acknowledgement]] = {}
    topic_count, position = read_compact_array_length(frame, position)
    left = spend(left, topic_count)
    for _ in range(topic_count):
        topic_id = bytes(frame[position : position + _TOPIC_ID_BYTES])
        position += _TOPIC_ID_BYTES
        partition_count, position = read_compact_array_length(frame, position)
        left = spend(left, partition_count)
        for _ in range(partition_count):
            (index,) = INT32.unpack_from(frame, position)
            batch_count, position = read_compact_array_length(frame, position + 4)
            left = spend(left, batch_count)
            said = partitions.setdefault((topic_id, index), [])
            for _ in range(batch_count):
                first, last = _OFFSETS.unpack_from(frame, position)
                count, position = read_compact_array_length(frame, position + _OFFSETS.size)
                said.append(Acknowledgement(first, last, bytes(frame[position : position + count])))
                position = skip_tagged_fields(frame, position + count)
            position = skip_tagged_fields(frame, position)
        position = skip_tagged_fields(frame, position)
    return partitions, position, left


def _parse_forgotten(
    frame: memoryview, position: int, left: int
) -> tuple[list[PartitionKey], int, int]:
    forgotten: list[PartitionKey] = []
    topic_count, position = read_compact_array_length(frame, position)
    left = spend(left, topic_count)
    for _ in range(topic_count):
        topic_id = bytes(frame[position : position + _TOPIC_ID_BYTES])
        count, position = read_compact_array_length(frame, position + _TOPIC_ID_BYTES)
        left = spend(left, count)
        indexes = struct.unpack_from(f">{count}i", frame, position)
        forgotten += [(topic_id, index) for index in indexes]
        position = skip_tagged_fields(frame, position + 4 * count)
    return forgotten, position, left


def encode_share_fetch(
    correlation_id: int,
    results: dict[PartitionKey, ShareFetchResult],
    *,
    lock_ms: int = 0,
    error_code: int = 0,
    error_message: str | None = None,
    endpoints: Sequence[Endpoint] = (),
    throttle_ms: int = 0,
) -> Reply:
    """Return the whole response in segments, with its size and header.

    Reads slices below ``SENDFILE_BYTES_MIN`` from their files. Raises ``OSError``.
    """
    out = head = bytearray(9)
    head += _TOP.pack(throttle_ms, error_code)
    write_compact_nullable_string(head, _error_text(error_message))
    head += INT32.pack(lock_ms)
    topics: dict[bytes, list[tuple[int, ShareFetchResult]]] = {}
    for (topic_id, index), result in results.items():
        topics.setdefault(topic_id, []).append((index, result))
    segments: list[bytes | bytearray | FileSlice] = [head]
    sent_size_bytes = 0
    write_uvarint(out, len(topics) + 1)
    for topic_id, partitions in topics.items():
        out += topic_id
        write_uvarint(out, len(partitions) + 1)
        for index, result in partitions:
            _write_partition(out, index, result)
            records = result.records
            if records is None:
                out.append(1)
            else:
                write_uvarint(out, records.size_bytes + 1)
                segments.append(slice_segment(records))
                sent_size_bytes += len(out) + records.size_bytes
                out = bytearray()
                segments.append(out)
            write_uvarint(out, len(result.acquired) + 1)
            for acquired in result.acquired:
                out += _ACQUIRED.pack(*acquired, 0)
            out.append(0)
        out.append(0)
    _write_endpoints(out, endpoints)
    out.append(0)
    _SIZE_CORRELATION.pack_into(head, 0, sent_size_bytes + len(out) - 4, correlation_id)
    return segments


def _write_partition(out: bytearray, index: int, result: ShareFetchResult) -> None:
    out += INT32.pack(index)
    out += INT16.pack(result.error_code)
    write_compact_nullable_string(out, _error_text(result.error_message))
    out += INT16.pack(result.acknowledge_error_code)
    write_compact_nullable_string(out, _error_text(result.acknowledge_error_message))
    out += _LEADER.pack(result.leader_id, result.leader_epoch, 0)


def _write_endpoints(out: bytearray, endpoints: Sequence[Endpoint]) -> None:
    write_uvarint(out, len(endpoints) + 1)
    for endpoint in endpoints:
        out += INT32.pack(endpoint.broker_id)
        write_compact_nullable_string(out, _text(endpoint.host))
        out += INT32.pack(endpoint.port)
        write_compact_nullable_string(out, _text(endpoint.rack))
        out.append(0)


def _text(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


def _error_text(value: str | None) -> bytes | None:
    return None if value is None else cut_error_text(value).encode()
