"""Record batches that are wrong in one way each."""

from __future__ import annotations

import struct
import time
import zlib
from typing import Any

from crc32c import crc32c

from tests.support.batches import batch_of

NOW_MS = time.time_ns() // 1_000_000
# Field -> (position, layout) in the header of a batch.
FIELDS = {
    "base_offset": (0, ">q"),
    "batch_length": (8, ">i"),
    "leader_epoch": (12, ">i"),
    "magic": (16, ">b"),
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "base_timestamp": (27, ">q"),
    "max_timestamp": (35, ">q"),
    "producer_id": (43, ">q"),
    "producer_epoch": (51, ">h"),
    "base_sequence": (53, ">i"),
    "record_count": (57, ">i"),
}
CRC_FROM = 21


def good_batch(*values: bytes | None, timestamp_ms: int = NOW_MS, **fields: Any) -> bytes:
    """Return a valid batch, the same bytes at each call."""
    return batch_of(*(values or (b"value",)), timestamp_ms=timestamp_ms, **fields)


def edited(good: bytes, **fields: int) -> bytes:
    """Return the batch with header fields replaced and a CRC that fits again."""
    data = bytearray(good)
    for name, value in fields.items():
        position, layout = FIELDS[name]
        struct.pack_into(layout, data, position, value)
    return sealed(bytes(data))


def sealed(data: bytes) -> bytes:
    """Return the batch with the CRC of its bytes."""
    return data[:17] + struct.pack(">I", crc32c(data[CRC_FROM:])) + data[CRC_FROM:]


def with_bad_crc(good: bytes) -> bytes:
    """Return the batch with one bit of its CRC flipped."""
    return good[:17] + bytes([good[17] ^ 1]) + good[18:]


def with_payload(good: bytes, payload: bytes, **fields: int) -> bytes:
    """Return the batch with other bytes where its records were."""
    return edited(good[:61] + payload, batch_length=49 + len(payload), **fields)


def without_records() -> bytes:
    """Return a batch of no records, as compaction leaves them."""
    return with_payload(good_batch(), b"", record_count=0, last_offset_delta=-1)


def legacy_message(magic: int, value: bytes = b"value") -> bytes:
    """Return a message set of one message in format 0 or 1."""
    content = struct.pack(">bb", magic, 0)
    if magic == 1:
        content += struct.pack(">q", NOW_MS)
    content += struct.pack(">ii", -1, len(value)) + value
    message = struct.pack(">I", zlib.crc32(content)) + content
    return struct.pack(">qi", 0, len(message)) + message


def control_batch(good: bytes) -> bytes:
    """Return the batch marked as one that only coordinators write."""
    return edited(good, attributes=0x20)
