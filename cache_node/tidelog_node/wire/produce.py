"""Produce, versions 3 to 13, without touching record bytes.

The records of each partition are a memoryview of the receive buffer, so that they can
be patched in place and written to the log.

    request   transactional id, acks:16, timeout ms:32,
              [topic name (13+: id), [partition:32, records]]
    response  [topic, [partition:32, error:16, base offset:64, log append time:64,
              5+ log start offset:64, 8+ record errors, error message, 10+ tag 0: leader]],
              throttle ms:32, 10+ tag 0: endpoints of those leaders

Source: ProduceRequest.json and ProduceResponse.json; KIP-467, KIP-482, KIP-516, KIP-951.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from tidelog_node.wire.primitives import (
    ELEMENTS_UNBOUNDED,
    INT32,
    MalformedRequest,
    read_compact_array_length,
    read_compact_nullable_string,
    read_nullable_string,
    read_string,
    read_topic,
    read_uvarint,
    skip_tagged_fields,
    spend,
    write_compact_nullable_string,
    write_nullable_string,
    write_string,
    write_uvarint,
)

API_KEY = 0
VERSION_MIN = 3
VERSION_MAX = 13
FLEXIBLE_FROM = 9
TOPIC_ID_FROM = 13
# Names this short have a compact length of one byte.
SHORT_NAME_SIZE_BYTES_MAX = 126

_ACKS_TIMEOUT_COUNT = struct.Struct(">hii")
_ACKS_TIMEOUT = struct.Struct(">hi")
_INDEX_LENGTH = struct.Struct(">ii")
_PARTITION_V3 = struct.Struct(">ihqq")
_PARTITION_V5 = struct.Struct(">ihqqq")
_SIZE_CORRELATION = struct.Struct(">ii")
_LEADER = struct.Struct(">ii")
# Most flexible requests, from the transactional id to the records' length. Encoded counts and
# lengths are one more than the value. The topic is given by name or by id.
_USUAL_NAME = struct.Struct(">xhiBB")
_USUAL_ID = struct.Struct(">xhiB16s")
_USUAL_PARTITION = struct.Struct(">Bi")
_USUAL_SIZE_BYTES_MIN = _USUAL_ID.size + _USUAL_PARTITION.size + 1
_USUAL_TAGS_SIZE_BYTES = 3  # zero counts of partition, topic and request

# One topic of a request: its name (or id) as sent, and its partitions' indexes and records.
ProduceTopic = tuple[bytes, list[tuple[int, "memoryview | None"]]]


@dataclass(slots=True)
class ProduceRequest:
    """A parsed request; valid until the receive buffer is reused."""

    transactional_id: bytes | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]
    element_count: int = field(default=1, compare=False)  # topics and partitions
    # The results of topics that the client may not write, which are no longer in ``topics``.
    refused: Sequence[tuple[bytes, list[ProduceResult]]] = ()


class ProduceResult(NamedTuple):
    """The result for one partition's records."""

    partition: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: bytes | None = None
    leader_id: int = -1  # -1 omits the current leader
    leader_epoch: int = -1
    record_errors: Sequence[tuple[int, bytes | None]] = ()


class Endpoint(NamedTuple):
    """A broker's address and rack."""

    broker_id: int
    host: str
    port: int
    rack: str | None


def parse_produce(
    frame: memoryview, position: int, version: int, elements_max: int = ELEMENTS_UNBOUNDED
) -> ProduceRequest:
    """Return the request whose body starts at ``position``.

    Raises one of ``PARSE_ERRORS``, and ``TooManyElements`` beyond ``elements_max`` topics and
    partitions.
    """
    if version >= FLEXIBLE_FROM:
        has_topic_ids = version >= TOPIC_ID_FROM
        return _parse_flexible(frame, position, elements_max, has_topic_ids=has_topic_ids)
    transactional_id, position = read_nullable_string(frame, position)
    # One unpack reads all fields between two strings of unknown length.
    acks, timeout_ms, topic_count = _ACKS_TIMEOUT_COUNT.unpack_from(frame, position)
    position += 10
    frame_size_bytes = len(frame)
    if not 0 <= topic_count <= frame_size_bytes:
        raise MalformedRequest(f"{topic_count} topics do not fit their request")
    left = spend(elements_max, topic_count)
    topics: list[ProduceTopic] = []
    for _ in range(topic_count):
        name, position = read_string(frame, position)
        (partition_count,) = INT32.unpack_from(frame, position)
        if partition_count < 0:
            raise MalformedRequest(f"a topic has {partition_count} partitions")
        left = spend(left, partition_count)
        position += 4
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(partition_count):
            index, length = _INDEX_LENGTH.unpack_from(frame, position)
            position += 8
            if length < 0:
                partitions.append((index, None))
                continue
            end = position + length
            partitions.append((index, frame[position:end]))
            position = end
        if position > frame_size_bytes:
            raise MalformedRequest("records do not fit their request")
        topics.append((name, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics, elements_max - left)


def _parse_flexible(
    frame: memoryview, position: int, elements_max: int, *, has_topic_ids: bool
) -> ProduceRequest:
    usual = _parse_usual(frame, position, has_topic_ids=has_topic_ids)
    if usual is not None:
        return usual
    transactional_id, position = read_compact_nullable_string(frame, position)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, position)
    topic_count, position = read_compact_array_length(frame, position + 6)
    left = spend(elements_max, topic_count)
    topics: list[ProduceTopic] = []
    for _ in range(topic_count):
        name, position = read_topic(frame, position, is_id=has_topic_ids)
        partition_count, position = read_compact_array_length(frame, position)
        left = spend(left, partition_count)
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(partition_count):
            (index,) = INT32.unpack_from(frame, position)
            length, position = read_uvarint(frame, position + 4)
            if length == 0:
                partitions.append((index, None))
            else:
                end = position + length - 1
                partitions.append((index, frame[position:end]))
                position = end
            position = skip_tagged_fields(frame, position)
        position = skip_tagged_fields(frame, position)
        topics.append((name, partitions))
    skip_tagged_fields(frame, position)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics, elements_max - left)


def _parse_usual(frame: memoryview, position: int, *, has_topic_ids: bool) -> ProduceRequest | None:
    """Return the request if it has one topic and one partition with records, else ``None``.

    Also ``None`` for a transactional id, a long topic name or tagged fields. The cost of a small
    request is the number of steps to parse it; this takes few.
    """
    records_end = len(frame) - _USUAL_TAGS_SIZE_BYTES
    if records_end - position < _USUAL_SIZE_BYTES_MIN or frame[position] != 0:
        return None  # too short, or a transactional id
    if has_topic_ids:
        acks, timeout_ms, topic_count, name = _USUAL_ID.unpack_from(frame, position)
        position += _USUAL_ID.size
    else:
        acks, timeout_ms, topic_count, name_length = _USUAL_NAME.unpack_from(frame, position)
        position += _USUAL_NAME.size
        if not 0 < name_length <= SHORT_NAME_SIZE_BYTES_MAX + 1:
            return None
        name = bytes(frame[position : position + name_length - 1])
        position += name_length - 1
        if records_end - position <= _USUAL_PARTITION.size:
            return None
    partition_count, index = _USUAL_PARTITION.unpack_from(frame, position)
    if topic_count != 2 or partition_count != 2:
        return None
    length, position = read_uvarint(frame, position + _USUAL_PARTITION.size)
    if length == 0 or position + length - 1 != records_end or any(frame[records_end:]):
        return None  # no records, or tagged fields after them
    partitions: list[tuple[int, memoryview | None]] = [(index, frame[position:records_end])]
    return ProduceRequest(None, acks, timeout_ms, [(name, partitions)])


def encode_produce(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[bytes, Sequence[ProduceResult]]],
    endpoints: Sequence[Endpoint] = (),
    *,
    throttle_ms: int = 0,
) -> bytes | bytearray:
    """Return the whole response, with its size and header."""
    if len(topics) == 1 and not endpoints:
        name, results = topics[0]
        is_usual = len(results) == 1 and results[0].error_code == 0
        if is_usual and len(name) <= SHORT_NAME_SIZE_BYTES_MAX:
            return _encode_single(version, correlation_id, name, results[0], throttle_ms)
    out = bytearray(8)
    if version >= FLEXIBLE_FROM:
        _encode_flexible(out, version, topics, endpoints, throttle_ms)
    else:
        _encode_plain(out, version, topics)
        out += INT32.pack(throttle_ms)
    _SIZE_CORRELATION.pack_into(out, 0, len(out) - 4, correlation_id)
    return out


def _encode_single(
    version: int, correlation_id: int, name: bytes, result: ProduceResult, throttle_ms: int
) -> bytes:
    """Return the response for one partition without an error."""
    name_size_bytes = len(name)
    layout = _single_layout(version, name_size_bytes)
    prefix = (layout.size - 4, correlation_id)
    index, code, base_offset, append_time_ms, log_start_offset = result[:5]
    if version >= TOPIC_ID_FROM:
        # Encoded counts and lengths are one more than the value; zeros are empty tagged fields and
        # the null error message.
        body: tuple[object, ...] = (0, 2, name, 2, index, code, base_offset, append_time_ms)
        return layout.pack(*prefix, *body, log_start_offset, 1, throttle_ms)
    if version >= FLEXIBLE_FROM:
        body = (0, 2, name_size_bytes + 1, name, 2, index, code, base_offset, append_time_ms)
        return layout.pack(*prefix, *body, log_start_offset, 1, throttle_ms)
    body = (1, name_size_bytes, name, 1, index, code, base_offset, append_time_ms)
    if version >= 8:
        return layout.pack(*prefix, *body, log_start_offset, 0, -1, throttle_ms)
    if version >= 5:
        return layout.pack(*prefix, *body, log_start_offset, throttle_ms)
    return layout.pack(*prefix, *body, throttle_ms)


@cache
def _single_layout(version: int, name_size_bytes: int) -> struct.Struct:
    name = f"{name_size_bytes}s"
    if version >= TOPIC_ID_FROM:
        return struct.Struct(f">iiBB{name}BihqqqB3xi1x")
    if version >= FLEXIBLE_FROM:
        return struct.Struct(f">iiBBB{name}BihqqqB3xi1x")
    if version >= 8:
        return struct.Struct(f">iiih{name}iihqqqihi")
    return struct.Struct(f">iiih{name}iihqqqi" if version >= 5 else f">iiih{name}iihqqi")


def _encode_plain(
    out: bytearray, version: int, topics: Sequence[tuple[bytes, Sequence[ProduceResult]]]
) -> None:
    out += INT32.pack(len(topics))
    for name, results in topics:
        write_string(out, name)
        out += INT32.pack(len(results))
        for result in results:
            index, error_code, base_offset, append_time_ms, log_start_offset = result[:5]
            if version < 5:
                out += _PARTITION_V3.pack(index, error_code, base_offset, append_time_ms)
                continue
            out += _PARTITION_V5.pack(
                index, error_code, base_offset, append_time_ms, log_start_offset
            )
            if version >= 8:
                out += INT32.pack(len(result.record_errors))
                for batch_index, message in result.record_errors:
                    out += INT32.pack(batch_index)
                    write_nullable_string(out, message)
                write_nullable_string(out, result.error_message)


def _encode_flexible(
    out: bytearray,
    version: int,
    topics: Sequence[tuple[bytes, Sequence[ProduceResult]]],
    endpoints: Sequence[Endpoint],
    throttle_ms: int,
) -> None:
    out.append(0)  # header tags
    write_uvarint(out, len(topics) + 1)
    for name, results in topics:
        if version >= TOPIC_ID_FROM:
            out += name
        else:
            write_compact_nullable_string(out, name)
        write_uvarint(out, len(results) + 1)
        for result in results:
            out += _PARTITION_V5.pack(*result[:5])
            _encode_flexible_errors(out, result)
            if version >= 10 and result.leader_id >= 0:
                out += b"\x01\x00\x09"  # one field, tag 0, 9 bytes
                out += _LEADER.pack(result.leader_id, result.leader_epoch)
            out.append(0)
        out.append(0)
    out += INT32.pack(throttle_ms)
    if version >= 10 and endpoints:
        write_endpoints_tag(out, endpoints)
    else:
        out.append(0)


def _encode_flexible_errors(out: bytearray, result: ProduceResult) -> None:
    if not result.record_errors and result.error_message is None:
        out += b"\x01\x00"
        return
    write_uvarint(out, len(result.record_errors) + 1)
    for batch_index, message in result.record_errors:
        out += INT32.pack(batch_index)
        write_compact_nullable_string(out, message)
        out.append(0)
    write_compact_nullable_string(out, result.error_message)


def write_endpoints_tag(out: bytearray, endpoints: Sequence[Endpoint]) -> None:
    """Append tagged fields with only tag 0, the leaders' endpoints. Source: KIP-951."""
    field = bytearray()
    write_uvarint(field, len(endpoints) + 1)
    for endpoint in endpoints:
        field += INT32.pack(endpoint.broker_id)
        write_compact_nullable_string(field, endpoint.host.encode())
        field += INT32.pack(endpoint.port)
        write_compact_nullable_string(
            field, None if endpoint.rack is None else endpoint.rack.encode()
        )
        field.append(0)
    out += b"\x01\x00"
    write_uvarint(out, len(field))
    out += field
