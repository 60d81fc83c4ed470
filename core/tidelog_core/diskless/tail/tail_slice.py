"""Slices of a partition's tail, packed: a reader keeps those of an hour, which may be millions.

A packed slice is the fields of ``_FIELDS``, and the rows of its batches as they are in the footer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import WalFooter
from tidelog_core.diskless.wal.rows import LAYOUTS, BatchRow, RowTable, WalSection
from tidelog_core.metadata.epoch_chains import ChainName

_FIELDS = Struct("<qqiqqIIIi16s?")
_OFFSET = Struct("<q")
_EPOCH = Struct("<i")
_ROW_SIZE = LAYOUTS[WalSection.BATCHES].struct.size


class TailSlice(NamedTuple):
    """A committed run of batches with its offsets, and the bytes of an object that it is."""

    base_offset: int
    end_offset: int  # exclusive
    leader_epoch: int
    max_timestamp_ms: int
    sequence: int  # of the object that has the bytes
    position: int  # bytes from the start of the object
    size_bytes: int
    crc32c: int
    chain: ChainName  # of the object
    # A gateway's: the batches' own base offsets count from 0, those of the rows are right.
    is_reference: bool
    rows: bytes  # of its batches

    @property
    def batches(self) -> RowTable[BatchRow]:
        """Return the rows of its batches."""
        return RowTable(BatchRow, WalSection.BATCHES, memoryview(self.rows))


class PackedSlices(Sequence[TailSlice]):
    """Slices in order of offset that do not overlap."""

    __slots__ = ("_packed",)

    def __init__(self, packed: Sequence[bytes] = ()) -> None:
        self._packed = tuple(packed)

    def __len__(self) -> int:
        return len(self._packed)

    def __getitem__(self, number: int) -> TailSlice:  # type: ignore[override]  # no slices
        return unpack_slice(self._packed[number])

    def between(self, start_offset: int, end_offset: int) -> Iterator[TailSlice]:
        """Yield the slices that overlap ``[start_offset, end_offset)``."""
        if start_offset >= end_offset:
            return
        first = bisect_right(self._packed, start_offset, key=end_offset_of)
        last = bisect_left(self._packed, end_offset, key=base_offset_of)
        for number in range(first, last):
            yield unpack_slice(self._packed[number])


def packed_slices(footer: WalFooter) -> Iterator[tuple[PartitionName, bytes]]:
    """Yield the slices and references that get their offsets in a committed object."""
    at = 0
    chain, sequence = footer.header.chain, footer.header.sequence
    for row in footer.slices:
        begin, at = at, at + row.batch_count
        if row.is_foreign:
            continue
        fields = _FIELDS.pack(
            row.base_offset,
            row.end_offset,
            row.leader_epoch,
            row.max_timestamp_ms,
            sequence,
            row.position,
            row.size_bytes,
            row.crc32c,
            chain.broker_id,
            chain.chain_id.bytes,
            False,
        )
        yield PartitionName.of_row(row), fields + _rows(footer, begin, at)
    for reference in footer.references:
        begin, at = at, at + reference.batch_count
        fields = _FIELDS.pack(
            reference.base_offset,
            reference.end_offset,
            reference.leader_epoch,
            reference.max_timestamp_ms,
            reference.sequence,
            reference.position,
            reference.size_bytes,
            reference.crc32c,
            reference.broker_id,
            reference.chain_id,
            True,
        )
        yield PartitionName.of_row(reference), fields + _rows(footer, begin, at)


def unpack_slice(packed: bytes) -> TailSlice:
    """Return the slice."""
    fields = _FIELDS.unpack_from(packed)
    broker_id, chain_id, is_reference = fields[8:]
    chain = ChainName(broker_id, UUID(bytes=chain_id))
    return TailSlice._make((*fields[:8], chain, is_reference, packed[_FIELDS.size :]))


def base_offset_of(packed: bytes) -> int:
    """Return the base offset of a packed slice."""
    found: int = _OFFSET.unpack_from(packed)[0]
    return found


def end_offset_of(packed: bytes) -> int:
    """Return the end offset of a packed slice, exclusive."""
    found: int = _OFFSET.unpack_from(packed, 8)[0]
    return found


def leader_epoch_of(packed: bytes) -> int:
    """Return the leader epoch of a packed slice."""
    found: int = _EPOCH.unpack_from(packed, 16)[0]
    return found


def _rows(footer: WalFooter, begin: int, end: int) -> bytes:
    return bytes(footer.batches.buffer[begin * _ROW_SIZE : end * _ROW_SIZE])
