"""What proves that tiered segments are whole and in their place.

Each segment's index object holds the SHA-256 of the segment's bytes and a hash that
chains it to the partition's segment before it:

    chained = SHA-256("tidelog chain 1\\0" || previous chained (32 bytes, zeros for the first)
                      || topic id (16) || partition (4) || base offset (8) || end offset (8)
                      || size (8) || SHA-256 of the segment's bytes (32))

with every number big-endian and unsigned. Whoever trusts one chained hash can check
every segment before it from the bucket alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from uuid import UUID

from tidelog_core.errors import CorruptObject, CorruptRecordBatch, UnsupportedMagic
from tidelog_core.records.batch import Buffer, check_crc, iter_headers
from tidelog_core.tier.index_file import IndexFile, crc32c_of

HASH_SIZE_BYTES = 32
NO_HASH = bytes(HASH_SIZE_BYTES)

_DOMAIN = b"tidelog chain 1\0"
_LINK = Struct(">32s16sIQQQ32s")


@dataclass(frozen=True, slots=True)
class ChainLink:
    """What of a segment goes into the chain."""

    topic_id: UUID
    partition: int
    base_offset: int
    end_offset: int
    size_bytes: int
    log_sha256: bytes


def chained_hash(previous: bytes, link: ChainLink) -> bytes:
    """Return the hash of the chain that ended with ``previous``, one segment on."""
    packed = _LINK.pack(
        previous,
        link.topic_id.bytes,
        link.partition,
        link.base_offset,
        link.end_offset,
        link.size_bytes,
        link.log_sha256,
    )
    return hashlib.sha256(_DOMAIN + packed).digest()


def verify_segment(key: str, log: Buffer, index: IndexFile) -> None:
    """Check a segment's bytes against its index: hashes, and every batch's place and CRC.

    Raises ``CorruptObject`` naming the object and the first thing that is wrong.
    """
    if len(log) != index.log_size_bytes:
        raise CorruptObject(key, f"it has {len(log)} bytes instead of {index.log_size_bytes}")
    if crc32c_of(log) != index.log_crc32c:
        raise CorruptObject(key, "the CRC of the whole does not match")
    with memoryview(log) as view:
        log_sha256 = hashlib.sha256(view).digest()
    if log_sha256 != index.log_sha256:
        raise CorruptObject(key, "the SHA-256 of the whole does not match")
    link = ChainLink(
        topic_id=index.topic_id,
        partition=index.partition,
        base_offset=index.base_offset,
        end_offset=index.end_offset,
        size_bytes=index.log_size_bytes,
        log_sha256=log_sha256,
    )
    if chained_hash(index.previous_hash, link) != index.chained_hash:
        raise CorruptObject(key, "the chained hash does not match")
    _verify_batches(key, log, index)


def _verify_batches(key: str, log: Buffer, index: IndexFile) -> None:
    rows = iter(index.batches)
    try:
        for position, header in iter_headers(log):
            row = next(rows, None)
            if row is None or row.position != position or row.base_offset != header.base_offset:
                raise CorruptObject(key, f"the batch at {position} is not in the batch table")
            check_crc(log, position, header)
    except (CorruptRecordBatch, UnsupportedMagic) as error:
        raise CorruptObject(key, str(error)) from error
    if next(rows, None) is not None:
        raise CorruptObject(key, "the batch table has more batches than the log")


def verify_chain(indexes: Iterable[tuple[str, IndexFile]]) -> None:
    """Check that each index follows the one before it, in offset order.

    The first may follow segments that retention has removed. Raises ``CorruptObject``.
    """
    before: IndexFile | None = None
    for key, index in indexes:
        if before is not None:
            if index.base_offset > before.end_offset:
                raise CorruptObject(
                    key, f"offsets [{before.end_offset}, {index.base_offset}) are missing before it"
                )
            if index.previous_hash != before.chained_hash:
                raise CorruptObject(key, "it does not continue the chain of the segment before it")
        before = index
