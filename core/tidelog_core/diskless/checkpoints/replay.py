"""A partition's end and producers from the footers of a chain, without the data.

A heir begins with a snapshot (of the tier, or of a checkpoint) and applies the committed slices
and references of the epoch in order of sequence. Records that the tier has are skipped. A gap is an
error: the missing records were acknowledged.
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
from tidelog_core.errors import CorruptObject
from tidelog_core.log.producer_state import ProducerState
from tidelog_core.log.values import AbortedTransaction, AppendOrigin
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
        (row.topic_id, row.partition): PartitionName(UUID(bytes=row.topic_id), row.partition)
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


class PartitionReplay:
    """The state of a partition at the end of the applied slices."""

    def __init__(self, partition: PartitionName, leader_epoch: int, state: ProducerState) -> None:
        """``state`` are the producers at the end of the tier, of a checkpoint or of an epoch."""
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.state = state
        self.slices: list[CommittedSlice] = []  # that the state did not have, without batches
        self.aborted: list[AbortedTransaction] = []

    def begin_epoch(self, leader_epoch: int, first_offset: int) -> None:
        """Begin the next epoch; later slices of the previous one are not part of the log.

        Raises ``ValueError`` if the one before was not applied up to there.
        """
        if first_offset > self.end_offset:
            raise ValueError(
                f"epoch {leader_epoch} of {self.partition} begins at {first_offset}, the one"
                f" before was found up to {self.end_offset}"
            )
        self.leader_epoch = leader_epoch

    @property
    def end_offset(self) -> int:
        """The offset behind the last committed batch."""
        return self.state.end_offset

    def apply(self, one: CommittedSlice, *, key: str) -> None:
        """Apply the next slice, if it is one of this partition and epoch.

        Raises ``CorruptObject`` with the key of its object if offsets are missing before it.
        """
        if (one.partition, one.leader_epoch) != (self.partition, self.leader_epoch):
            return
        if one.end_offset <= self.end_offset:
            return
        if one.base_offset > self.end_offset:
            raise CorruptObject(
                key,
                f"offsets [{self.end_offset}, {one.base_offset}) of {self.partition} are missing"
                " before it",
            )
        for row in one.batches:
            if row.base_offset >= self.end_offset:
                self._apply_batch(row, one.created_ms)
        # Only where the bytes are: an hour of batches is more than memory has room for.
        self.slices.append(one._replace(batches=()))

    def _apply_batch(self, row: BatchRow, created_ms: int) -> None:
        end_offset = row.base_offset + row.last_offset_delta + 1
        # Clients choose the batch's timestamps: by those, a producer of old records would expire
        # at once, and its retry would be taken for something new.
        draft = self.state.stage(AppendOrigin.REPLICATION, now_ms=created_ms)
        if row.producer_id >= 0:
            draft.add(header_of(row, self.leader_epoch), row.base_offset, marker_of(row))
        self.aborted += self.state.commit(draft, end_offset=end_offset)
        self.state.advance_high_watermark(end_offset)


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
