"""Hashes of the keys of a segment's records, and their bits in a key filter.

This runs for each record of a segment that is tiered, so it is compiled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from tidelog_core.errors import CorruptRecordBatch
from tidelog_core.records.decode import records_body
from tidelog_core.records.header import BatchHeader, Buffer
from tidelog_core.records.varint import read_zigzag

_LOW = 0xFFFFFFFF


def hash_key(key: bytes) -> int:
    """Return the hash that the filter keeps of a key."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


def add_key_hashes(buffer: Buffer, position: int, header: BatchHeader, into: set[int]) -> None:
    """Add the hashes of a batch's keys. Raises ``CorruptRecordBatch``."""
    body = records_body(buffer, position, header)
    at = 0
    try:
        for _ in range(header.record_count):
            size = body[at]
            if size < 128:
                at += 1
            else:
                size, at = read_zigzag(body, at)
            end = at + (size >> 1)
            at += 1  # the attributes
            while body[at] > 127:  # the timestamp delta
                at += 1
            at += 1
            while body[at] > 127:  # the offset delta
                at += 1
            at += 1
            length = body[at]
            if length < 128:
                at += 1
            else:
                length, at = read_zigzag(body, at)
            if not length & 1:  # odd is negative: no key
                into.add(hash_key(body[at : at + (length >> 1)]))
            at = end
    except (IndexError, ValueError) as error:
        raise CorruptRecordBatch(f"a record's key cannot be found: {error}") from None


def bit_table(hashes: Collection[int], bit_count: int, probe_count: int) -> bytearray:
    """Return the filter's bits with those of the hashes set."""
    bits = bytearray(bit_count // 8)
    for hashed in hashes:
        at, step = hashed & _LOW, hashed >> 32 | 1
        for _ in range(probe_count):
            bit = at % bit_count
            bits[bit >> 3] |= 1 << (bit & 7)
            at += step
    return bits
