"""A follower's Fetch: version 15, the first with the replica's epoch.

    request   max wait ms:32, min bytes:32, max bytes:32, isolation:8, session id:32,
              session epoch:32, [topic id, [partition:32, leader epoch:32, fetch offset:64,
              last fetched epoch:32, log start offset:64, max bytes:32]],
              forgotten: [topic id, [partition:32]], no rack; tag 1: replica id:32,
              replica epoch:64
    response  throttle ms:32, error:16, session id:32,
              [topic id, [partition:32, error:16, high watermark:64, last stable offset:64,
              log start offset:64, aborted, preferred replica:32, records, tag 0: diverging]]

Source: FetchRequest.json and FetchResponse.json; KIP-227, KIP-595, KIP-903.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidelog_core.errors import ErrorCode, NotLeaderOrFollower
from tidelog_core.fetch_epochs import FINAL_EPOCH, NO_SESSION

from tidelog_node.wire.primitives import (
    MalformedRequest,
    read_compact_array_length,
    read_tag_count,
    read_uvarint,
    skip_tagged_fields,
    write_uvarint,
)

API_KEY = 1
VERSION = 15
CLIENT_ID = b"tidelog-follower"

_SIZE_HEADER = struct.Struct(f">ihhih{len(CLIENT_ID)}sB")
_LIMITS = struct.Struct(">iiibii")
_INDEX = struct.Struct(">i")
_PARTITION = struct.Struct(">iiqiqiB")
_REPLICA_STATE = struct.Struct(">BBBiqB")
_RESPONSE_HEAD = struct.Struct(">iBihi")  # correlation id, tags, throttle, error, session
_RESULT = struct.Struct(">ihqqq")
_ABORTED_SIZE_BYTES = 16
_EPOCH_OFFSET = struct.Struct(">iq")
_NO_TOPICS: Mapping[bytes, Sequence[int]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerLimits:
    """The fetching replica, and the limits of one fetch."""

    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    max_bytes: int
    partition_max_bytes: int


class WantedPartition(NamedTuple):
    """One partition to fetch."""

    partition: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int
    is_fed: bool = False  # see ``ReplicaFetch``


class FetchedPartition(NamedTuple):
    """The leader's result for one partition."""

    topic_id: bytes
    partition: int
    error_code: int
    high_watermark: int
    log_start_offset: int
    diverging: tuple[int, int] | None  # an epoch and its end offset at the leader
    records: memoryview | None  # a view of the answer's buffer


def encode_follower_fetch(
    correlation_id: int,
    limits: FollowerLimits,
    topics: Mapping[bytes, Sequence[WantedPartition]],
    *,
    session_id: int = NO_SESSION,
    session_epoch: int = FINAL_EPOCH,
    forgotten: Mapping[bytes, Sequence[int]] = _NO_TOPICS,
    may_wait: bool = True,
) -> bytearray:
    """Return the request with its size. Topics are keyed by id; ``forgotten`` has indexes.

    Without ``may_wait`` the leader answers immediately, also if there is nothing new. A partition
    whose records come from the bucket is fetched with 0 bytes at most, no other one is.
    """
    bytes_max = max(1, limits.partition_max_bytes)
    out = bytearray(_SIZE_HEADER.size)
    max_wait_ms = limits.max_wait_ms if may_wait else 0
    out += _LIMITS.pack(max_wait_ms, 1, limits.max_bytes, 0, session_id, session_epoch)
    write_uvarint(out, len(topics) + 1)
    for topic_id, partitions in topics.items():
        out += topic_id
        write_uvarint(out, len(partitions) + 1)
        for wanted in partitions:
            out += _PARTITION.pack(
                wanted.partition,
                wanted.leader_epoch,
                wanted.offset,
                wanted.last_fetched_epoch,
                wanted.log_start_offset,
                0 if wanted.is_fed else bytes_max,
                0,
            )
        out.append(0)
    write_uvarint(out, len(forgotten) + 1)
    for topic_id, indexes in forgotten.items():
        out += topic_id
        write_uvarint(out, len(indexes) + 1)
        for index in indexes:
            out += _INDEX.pack(index)
        out.append(0)
    out += b"\x01"  # an empty rack
    # One tagged field: tag 1, 13 bytes.
    out += _REPLICA_STATE.pack(1, 1, 13, limits.replica_id, limits.replica_epoch, 0)
    size_bytes = len(out) - 4
    _SIZE_HEADER.pack_into(
        out, 0, size_bytes, API_KEY, VERSION, correlation_id, len(CLIENT_ID), CLIENT_ID, 0
    )
    return out


def parse_follower_fetch(frame: memoryview) -> tuple[int, int, list[FetchedPartition]]:
    """Return the error code of the whole answer, the session id and the partitions' results.

    Raises one of ``PARSE_ERRORS``.
    """
    _, tag_count, _, error_code, session_id = _RESPONSE_HEAD.unpack_from(frame)
    if tag_count:
        raise MalformedRequest("a response header with tagged fields")
    position = _RESPONSE_HEAD.size
    found: list[FetchedPartition] = []
    topic_count, position = read_compact_array_length(frame, position)
    for _ in range(topic_count):
        topic_id = bytes(frame[position : position + 16])
        partition_count, position = read_compact_array_length(frame, position + 16)
        for _ in range(partition_count):
            fetched, position = _parse_partition(frame, position, topic_id)
            found.append(fetched)
        position = skip_tagged_fields(frame, position)
    return error_code, session_id, found


def known_error(code: int) -> ErrorCode:
    """Return the error. Raises ``NotLeaderOrFollower`` for a code that is not known here."""
    try:
        return ErrorCode(code)
    except ValueError:
        raise NotLeaderOrFollower(f"the leader answers error {code}") from None


def error_name(code: int) -> str:
    """Return Kafka's name of an error, or its number if the code is not known here."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def _parse_partition(
    frame: memoryview, position: int, topic_id: bytes
) -> tuple[FetchedPartition, int]:
    index, error_code, high_watermark, _, log_start_offset = _RESULT.unpack_from(frame, position)
    aborted_count, position = read_uvarint(frame, position + _RESULT.size)
    for _ in range(aborted_count - 1):
        position = skip_tagged_fields(frame, position + _ABORTED_SIZE_BYTES)
    size_bytes, position = read_uvarint(frame, position + 4)
    records: memoryview | None = None
    if size_bytes > 1:
        end = position + size_bytes - 1
        if end > len(frame):
            raise MalformedRequest("records do not fit their response")
        records = frame[position:end]
        position = end
    diverging: tuple[int, int] | None = None
    tag_count, position = read_tag_count(frame, position)
    for _ in range(tag_count):
        tag, position = read_uvarint(frame, position)
        size_bytes, position = read_uvarint(frame, position)
        if tag == 0:
            diverging = _EPOCH_OFFSET.unpack_from(frame, position)
        position += size_bytes
    fetched = FetchedPartition(
        topic_id, index, error_code, high_watermark, log_start_offset, diverging, records
    )
    return fetched, position
