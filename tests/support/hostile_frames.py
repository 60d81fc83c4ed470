"""Requests that no stock client sends; each is well formed unless its name says otherwise."""

from __future__ import annotations

import struct

import crc32c
import zstandard
from tidelog_core.records.batch import build_batch
from tidelog_core.records.record import Record

from tests.support.wire_client import frame

# Metadata v9 with a compact array that is said to have 2^32 elements, and none of them.
HUGE_ARRAY = (
    b"\x00\x00\x00\x19\x00\x03\x00\x09\x00\x00\x00\x01\x00\x05chaos\x00"
    b"\xff\xff\xff\xff\x0f\x00\x00\x00\x00"
)
UNKNOWN_TAG = b"\x01" + b"\x8f\x4e" + b"\x03" + b"abc"  # one tagged field, 9999, of 3 bytes


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _compact_string(text: str) -> bytes:
    return bytes([len(text) + 1]) + text.encode()


def with_unknown_tags() -> dict[str, bytes]:
    """Return requests by name, with an unknown tagged field in header and body."""
    client = _compact_string("test") + _compact_string("1")
    return {
        "ApiVersions v3": frame(18, 3, 1, client + UNKNOWN_TAG, tags=UNKNOWN_TAG),
        "Metadata v9": frame(3, 9, 1, b"\x01\x00\x00\x00" + UNKNOWN_TAG, tags=UNKNOWN_TAG),
        "FindCoordinator v3": frame(
            10, 3, 1, _compact_string("group") + b"\x00" + UNKNOWN_TAG, tags=UNKNOWN_TAG
        ),
        "ListGroups v3": frame(16, 3, 1, UNKNOWN_TAG, tags=UNKNOWN_TAG),
    }


def metadata_of_unknown_topics(count: int) -> bytes:
    """Return a Metadata v4 request, nothing to be created."""
    names = b"".join(_string(f"{number:08x}") for number in range(count))
    return frame(3, 4, 1, struct.pack(">i", count) + names + b"\x00", tags=b"")


def metadata_of_new_topics(count: int, *, prefix: str) -> bytes:
    """Return a Metadata v4 request that has its topics created."""
    names = b"".join(_string(f"{prefix}{number:06d}") for number in range(count))
    return frame(3, 4, 1, struct.pack(">i", count) + names + b"\x01", tags=b"")


def offset_fetch_of_partitions(count: int) -> bytes:
    """Return an OffsetFetch v1 request of one topic's partitions."""
    partitions = struct.pack(f">{count}i", *range(count))
    body = _string("group") + struct.pack(">i", 1) + _string("t") + struct.pack(">i", count)
    return frame(9, 1, 1, body + partitions, tags=b"")


def describe_groups(count: int) -> bytes:
    """Return a DescribeGroups v0 request of groups that do not exist."""
    names = b"".join(_string(f"{number:06x}") for number in range(count))
    return frame(15, 0, 1, struct.pack(">i", count) + names, tags=b"")


def produce_of_empty_partitions(count: int) -> bytes:
    """Return a Produce v8 request, acks 1, with null records for each partition."""
    body = struct.pack(">hhi", -1, 1, 1000) + struct.pack(">i", 1) + _string("t")
    empty = b"".join(struct.pack(">ii", number, -1) for number in range(count))
    return frame(0, 8, 1, body + struct.pack(">i", count) + empty, tags=b"")


def create_topics(count: int, *, is_validation: bool, prefix: str) -> bytes:
    """Return a CreateTopics v4 request for topics of one partition."""
    topic = struct.pack(">ihii", 1, 3, 0, 0)
    topics = b"".join(_string(f"{prefix}{number:06d}") + topic for number in range(count))
    body = struct.pack(">i", count) + topics + struct.pack(">i", 120_000)
    return frame(19, 4, 1, body + bytes([is_validation]), tags=b"")


def batch_of_small_records(count: int) -> bytes:
    """Return a zstd batch of records with a key of one byte and no value."""
    rows = bytearray()
    for offset in range(count):
        offset_delta = _varint(offset << 1)
        body = b"\x00\x00" + offset_delta + b"\x02k" + b"\x01" + b"\x00"
        rows += _varint(len(body) << 1) + body
    compressed = zstandard.compress(bytes(rows))
    return _batch_around(compressed, count)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _batch_around(records: bytes, count: int) -> bytes:
    """Return a batch v2 with these compressed records; the CRC is right."""
    template = bytes(build_batch([Record(0, 1_700_000_000_000, b"k", None, ())]))
    head = bytearray(template[:61])
    struct.pack_into(">i", head, 8, 61 - 12 + len(records))
    struct.pack_into(">h", head, 21, 4)  # zstd
    struct.pack_into(">i", head, 23, count - 1)  # last offset delta
    struct.pack_into(">i", head, 57, count)
    struct.pack_into(">I", head, 17, crc32c.crc32c(bytes(head[21:]) + records))
    return bytes(head) + records
