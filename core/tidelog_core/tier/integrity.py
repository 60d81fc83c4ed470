"""The hashes that prove that tiered segments are complete and in order.

Each segment's index object holds the SHA-256 of the segment's bytes and a hash that
chains it to the partition's segment before it:

    chained = SHA-256("tidelog chain 1\\0" || previous chained (32 bytes, zeros for the first)
                      || topic id (16) || partition (4) || base offset (8) || end offset (8)
                      || size (8) || SHA-256 of the segment's bytes (32))

with every number big-endian and unsigned. With one trusted chained hash, every segment before it
can be checked from the bucket alone.

A rewritten segment takes the previous chained hash of the first segment that it replaces, and
lists the links of all of them. A segment that continued one of those continues the rewritten one,
so no other hash has to change. The list can be verified. That the new bytes are the right rest of
the old ones is known only to the process that rewrote them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from uuid import UUID

from tidelog_core.errors import CorruptObject, CorruptRecordBatch, UnsupportedMagic
from tidelog_core.records.batch import Buffer, check_crc, iter_headers
from tidelog_core.tier.index_file import IndexFile, ReplacedSegment, batch_row, crc32c_of

HASH_SIZE_BYTES = 32
NO_HASH = bytes(HASH_SIZE_BYTES)

CHAIN_PROBLEM = "it does not continue the chain of a segment before it"

_DOMAIN = b"tidelog chain 1\0"
_LINK = Struct(">32s16sIQQQ32s")


@dataclass(frozen=True, slots=True)
class ChainLink:
    """The fields of a segment that its chained hash covers."""

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


def index_hash(index: IndexFile) -> bytes:
    """Return the chained hash that the other fields of the index give."""
    link = ChainLink(
        topic_id=index.topic_id,
        partition=index.partition,
        base_offset=index.base_offset,
        end_offset=index.end_offset,
        size_bytes=index.log_size_bytes,
        log_sha256=index.log_sha256,
    )
    return chained_hash(index.previous_hash, link)


def replaced_segment(index: IndexFile) -> ReplacedSegment:
    """Return this segment's row in the index of a segment that replaces it."""
    return ReplacedSegment(
        segment_id=index.segment_id,
        base_offset=index.base_offset,
        end_offset=index.end_offset,
        size_bytes=index.log_size_bytes,
        previous_hash=index.previous_hash,
        log_sha256=index.log_sha256,
        chained_hash=index.chained_hash,
    )


def check_replaced(key: str, index: IndexFile) -> None:
    """Check a rewritten segment's rows of replaced segments. Raises ``CorruptObject``."""
    for row in index.replaced:
        link = ChainLink(
            topic_id=index.topic_id,
            partition=index.partition,
            base_offset=row.base_offset,
            end_offset=row.end_offset,
            size_bytes=row.size_bytes,
            log_sha256=row.log_sha256,
        )
        if chained_hash(row.previous_hash, link) != row.chained_hash:
            raise CorruptObject(key, f"the chained hash of {row.segment_id} does not match")
        if not index.base_offset <= row.base_offset <= row.end_offset <= index.end_offset:
            raise CorruptObject(key, f"it does not hold the offsets of {row.segment_id}")


def continued_hashes(index: IndexFile) -> list[tuple[bytes, int]]:
    """Return every chained hash that a later segment may continue, each with its base offset."""
    replaced = [(row.chained_hash, row.base_offset) for row in index.replaced]
    return [*replaced, (index.chained_hash, index.base_offset)]


def verify_segment(key: str, log: Buffer, index: IndexFile) -> None:
    """Check a segment's bytes against its index: hashes, and every batch's place and CRC.

    Raises ``CorruptObject`` with the object's key and the first damage.
    """
    if len(log) != index.log_size_bytes:
        raise CorruptObject(key, f"it has {len(log)} bytes instead of {index.log_size_bytes}")
    if crc32c_of(log) != index.log_crc32c:
        raise CorruptObject(key, "the CRC of the whole does not match")
    with memoryview(log) as view:
        log_sha256 = hashlib.sha256(view).digest()
    if log_sha256 != index.log_sha256:
        raise CorruptObject(key, "the SHA-256 of the whole does not match")
    if index_hash(index) != index.chained_hash:
        raise CorruptObject(key, "the chained hash does not match")
    check_replaced(key, index)
    _verify_batches(key, log, index)


def _verify_batches(key: str, log: Buffer, index: IndexFile) -> None:
    rows = iter(index.batches)
    next_offset = index.base_offset
    record_count = 0
    try:
        for position, header in iter_headers(log):
            if next(rows, None) != batch_row(position, header):
                raise CorruptObject(key, f"the batch at {position} is not in the batch table")
            if header.base_offset < next_offset or header.next_offset > index.end_offset:
                raise CorruptObject(
                    key,
                    f"the batch at {position} has offsets [{header.base_offset}, "
                    f"{header.next_offset}), outside [{next_offset}, {index.end_offset})",
                )
            check_crc(log, position, header)
            next_offset = header.next_offset
            record_count += header.record_count
    except (CorruptRecordBatch, UnsupportedMagic) as error:
        raise CorruptObject(key, str(error)) from error
    if next(rows, None) is not None:
        raise CorruptObject(key, "the batch table has more batches than the log")
    if record_count != index.record_count:
        raise CorruptObject(key, f"it has {record_count} records instead of {index.record_count}")


def continues_chain(
    base_offset: int, previous_hash: bytes, *, first_end: int, bases: Mapping[bytes, int]
) -> bool:
    """Whether a segment that is not the first continues the chain.

    It must continue a segment that begins before it. That is not always the last such segment: a
    new leader with other segment boundaries may have copied that one later. A segment that overlaps
    the first may continue one that retention has removed since. ``first_end`` is the end of the
    first segment, ``bases`` has each segment's base offset by its chained hash.
    """
    before = bases.get(previous_hash)
    return base_offset < first_end or (before is not None and before < base_offset)
