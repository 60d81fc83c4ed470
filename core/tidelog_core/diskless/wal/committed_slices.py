"""The slices whose offsets a committed object decides, and the rows of their batches.

A data object has slices of its own, and references to slices in objects of gateways. Both have
rows for their batches, so a reader of the footer knows partitions' ends and producers without
the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import WalFooter
from tidelog_core.diskless.wal.rows import (
    NO_MARKER,
    BatchRow,
    ReferenceRow,
    RowRange,
    SliceRow,
)
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.records.control import ControlType, EndTransactionMarker
from tidelog_core.records.header import LOG_OVERHEAD, MAGIC, BatchHeader


class CommittedSlice(NamedTuple):
    """A slice with its offsets, and the object that has its bytes."""

    partition: PartitionName
    leader_epoch: int
    base_offset: int
    end_offset: int  # exclusive
    chain: ChainName
    sequence: int
    position: int
    size_bytes: int
    crc32c: int
    created_ms: int  # Unix time, when its leader put it into an object
    batches: Sequence[BatchRow]


_BATCH_COUNT = SliceRow._fields.index("batch_count")


def committed_slices(footer: WalFooter) -> list[CommittedSlice]:
    """Return the slices that get their offsets in a committed object, by partition and offset.

    References are among them. A gateway's own slices are not.
    """
    names = {
        (row.topic_id, row.partition): PartitionName.of_row(row)
        for rows in (footer.slices, footer.references)
        for row in rows
    }
    found = committed_slices_of(footer, names)
    return sorted(found, key=lambda one: (one.partition, one.base_offset))


def committed_slices_of(
    footer: WalFooter, names: Mapping[tuple[bytes, int], PartitionName]
) -> Iterator[CommittedSlice]:
    """Yield those of some partitions; ``names`` has them by topic id and number."""
    chain, sequence, created_ms = (
        footer.header.chain,
        footer.header.sequence,
        footer.header.created_ms,
    )
    at = 0
    for fields in footer.slices.fields(0, len(footer.slices)):
        start, at = at, at + fields[_BATCH_COUNT]
        name = names.get((fields[0], fields[1]))
        if name is None or (row := SliceRow(*fields)).is_foreign:
            continue
        yield CommittedSlice(
            name,
            row.leader_epoch,
            row.base_offset,
            row.end_offset,
            chain,
            sequence,
            row.position,
            row.size_bytes,
            row.crc32c,
            created_ms,
            RowRange(footer.batches, start, row.batch_count),
        )
    for reference in footer.references:
        start, at = at, at + reference.batch_count
        name = names.get((reference.topic_id, reference.partition))
        if name is not None:
            batches = RowRange(footer.batches, start, reference.batch_count)
            yield referenced_slice(reference, name, created_ms, batches)


def referenced_slice(
    row: ReferenceRow, name: PartitionName, created_ms: int, batches: Sequence[BatchRow]
) -> CommittedSlice:
    """Return the slice that a reference names."""
    return CommittedSlice(
        name,
        row.leader_epoch,
        row.base_offset,
        row.end_offset,
        ChainName(row.broker_id, UUID(bytes=row.chain_id)),
        row.sequence,
        row.position,
        row.size_bytes,
        row.crc32c,
        created_ms,
        batches,
    )


def header_of(row: BatchRow, leader_epoch: int) -> BatchHeader:
    """Return the header of the row's batch, but for its CRC."""
    attributes = row.attributes - 0x10000 if row.attributes & 0x8000 else row.attributes
    return BatchHeader(
        base_offset=row.base_offset,
        batch_length=row.size_bytes - LOG_OVERHEAD,
        partition_leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=row.last_offset_delta,
        base_timestamp_ms=row.base_timestamp_ms,
        max_timestamp_ms=row.max_timestamp_ms,
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        base_sequence=row.base_sequence,
        record_count=row.record_count,
    )


def marker_of(row: BatchRow) -> EndTransactionMarker | None:
    """Return the marker that ends a transaction, ``None`` for other batches."""
    if row.marker == NO_MARKER:
        return None
    return EndTransactionMarker(ControlType(row.marker), row.coordinator_epoch)
