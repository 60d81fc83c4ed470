"""Packs the metadata of a finished segment into 200 bytes of memory instead of 1,200.

A ``SegmentMeta`` is a dozen objects, and a leader may keep a hundred thousand segments. Packed, a
segment is one ``bytes`` object, which the garbage collector does not track. The topic, the
partition and the state are the same for all of them and left out. In memory only:

    base offset, end offset, size, max timestamp                            8 bytes each
    leader epoch, index size, created, deletable, rewrite epoch, compacted up to, version   8 each
    segment id                                                              16
    number of leader epochs                                                 4
    1 if the hash is packed as bytes, 0 if as text                          1
    each leader epoch and its first offset                                  8 each
    chained hash                                                            to the end
"""

from __future__ import annotations

from array import array
from struct import Struct
from uuid import UUID

from tidelog_core.metadata.records import SegmentMeta, SegmentState

_EXTENT = Struct("=4q")
_PLACE = Struct("=2q16xq24xq16x16s")
_FIELDS = Struct("=11q16sIB")
_EPOCH_SIZE_BYTES = 16
_ID = slice(88, 104)


def pack_segment(segment: SegmentMeta) -> bytes:
    """Return the finished segment's bytes."""
    assert segment.state is SegmentState.COPY_FINISHED
    epochs = array("q", [number for pair in segment.leader_epochs for number in pair])
    chained_hash, is_hex = _pack_hash(segment.chained_hash)
    fields = _FIELDS.pack(
        segment.base_offset,
        segment.end_offset,
        segment.size_bytes,
        segment.max_timestamp_ms,
        segment.leader_epoch,
        segment.index_size_bytes,
        segment.created_ms,
        segment.deletable_ms,
        segment.rewrite_epoch,
        segment.compacted_up_to,
        segment.version,
        segment.segment_id.bytes,
        len(segment.leader_epochs),
        is_hex,
    )
    return b"".join((fields, epochs.tobytes(), chained_hash))


def unpack_segment(packed: bytes, topic_id: UUID, partition: int) -> SegmentMeta:
    """Return the segment of the partition that was packed."""
    (
        base_offset,
        end_offset,
        size_bytes,
        max_timestamp_ms,
        leader_epoch,
        index_size_bytes,
        created_ms,
        deletable_ms,
        rewrite_epoch,
        compacted_up_to,
        version,
        segment_id,
        epoch_count,
        is_hex,
    ) = _FIELDS.unpack_from(packed)
    hash_start = _FIELDS.size + epoch_count * _EPOCH_SIZE_BYTES
    numbers = iter(array("q", packed[_FIELDS.size : hash_start]))
    chained_hash = packed[hash_start:]
    return SegmentMeta(
        topic_id=topic_id,
        partition=partition,
        base_offset=base_offset,
        end_offset=end_offset,
        leader_epoch=leader_epoch,
        segment_id=UUID(bytes=segment_id),
        state=SegmentState.COPY_FINISHED,
        size_bytes=size_bytes,
        index_size_bytes=index_size_bytes,
        max_timestamp_ms=max_timestamp_ms,
        leader_epochs=tuple(zip(numbers, numbers, strict=True)),
        chained_hash=chained_hash.hex() if is_hex else chained_hash.decode(errors=_ANY_TEXT),
        created_ms=created_ms,
        deletable_ms=deletable_ms,
        rewrite_epoch=rewrite_epoch,
        compacted_up_to=compacted_up_to,
        version=version,
    )


def unpack_extent(packed: bytes) -> tuple[int, int, int, int]:
    """Return base offset, end offset, size in bytes and greatest timestamp alone."""
    base_offset, end_offset, size_bytes, max_timestamp_ms = _EXTENT.unpack_from(packed)
    return base_offset, end_offset, size_bytes, max_timestamp_ms


def unpack_place(packed: bytes) -> tuple[int, int, int, int, int]:
    """Return ``place_in_reading`` of the segment alone."""
    base_offset, end_offset, leader_epoch, rewrite_epoch, segment_id = _PLACE.unpack_from(packed)
    return base_offset, -leader_epoch, -end_offset, -rewrite_epoch, -int.from_bytes(segment_id)


def unpack_id(packed: bytes) -> bytes:
    """Return the segment's id alone."""
    return packed[_ID]


_ANY_TEXT = "surrogatepass"  # JSON may hold half a character


def _pack_hash(text: str) -> tuple[bytes, bool]:
    try:
        packed = bytes.fromhex(text)
    except ValueError:
        packed = b""
    if packed.hex() == text:
        return packed, True
    return text.encode(errors=_ANY_TEXT), False
