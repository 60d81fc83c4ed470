"""Builds the objects of a chain from runs of batches: bytes in, bytes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from crc32c import crc32c

from tidelog_core.diskless.wal.footer import FOOTER_SIZE_BYTES_MAX
from tidelog_core.diskless.wal.header import (
    HEADER_SIZE,
    OBJECT_SIZE_BYTES_MAX,
    TRAILER_SIZE,
    WalHeader,
    WalKind,
    cluster_digest,
    pack_trailer,
)
from tidelog_core.diskless.wal.rows import (
    FOREIGN,
    REQUIRED_KINDS,
    ROW_SIZES_BYTES,
    BatchRow,
    EpochRow,
    MarkRow,
    ReferenceRow,
    RowTable,
    SealRow,
    SliceRow,
    SnapshotRow,
    WalSection,
    pack_rows,
)
from tidelog_core.diskless.wal.scan import SliceScan, scan_slice
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.model import NO_LEADER_EPOCH
from tidelog_core.records.header import Buffer
from tidelog_core.tier.sections import (
    HEADER_CRC,
    SECTION,
    aligned,
    pack_sections,
)


class ObjectName(NamedTuple):
    """The place of an object in its chain, and what its header says of it."""

    cluster_id: str
    chain: ChainName
    sequence: int
    committed_end: int
    previous_crc: int  # of the header of the object with the sequence before
    created_ms: int


class WalSlice(NamedTuple):
    """A run of whole batches of one partition, with final offsets unless it is foreign."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    data: Buffer
    is_foreign: bool = False


class SlicePlace(Protocol):
    """The partition that a slice is of."""

    @property
    def topic_id(self) -> UUID: ...

    @property
    def partition(self) -> int: ...

    @property
    def leader_epoch(self) -> int: ...


class ForeignSlice(NamedTuple):
    """A committed slice of a gateway's chain, and the offsets that the leader gave it."""

    gateway: ChainName
    sequence: int
    leader_epoch: int
    base_offset: int
    row: SliceRow
    batches: Sequence[BatchRow]


class Snapshot(NamedTuple):
    """A partition's producers, as ``log.producer_snapshot`` encodes them."""

    topic_id: UUID
    partition: int
    end_offset: int
    data: bytes
    # Of the chain's owner when they were taken; -1: an earlier program has not said.
    leader_epoch: int = NO_LEADER_EPOCH


class BuiltObject(NamedTuple):
    """The bytes of an object, and its header."""

    header: WalHeader
    data: bytes


def data_sections(
    scans: Sequence[tuple[SlicePlace, SliceScan]],
    *,
    references: Iterable[ForeignSlice] = (),
    epochs: Iterable[EpochRow] = (),
) -> dict[WalSection, bytes]:
    """Return the sections of an object with these slices, whose bytes were scanned.

    Raises ``CorruptRecordBatch`` if a batch is not whole, ``ValueError`` if a slice has none.
    """
    slice_rows = [_slice_row(place, scan) for place, scan in scans]
    batch_rows = [scan.rows for _, scan in scans]
    reference_rows: list[ReferenceRow] = []
    for reference in references:
        reference_rows.append(_reference_row(reference))
        batch_rows.append(pack_rows(WalSection.BATCHES, _rows_with_offsets(reference)))
    return {
        WalSection.SLICES: pack_rows(WalSection.SLICES, slice_rows),
        WalSection.BATCHES: b"".join(batch_rows),
        WalSection.REFERENCES: pack_rows(WalSection.REFERENCES, reference_rows),
        WalSection.EPOCHS: pack_rows(WalSection.EPOCHS, epochs),
    }


def build_seal(name: ObjectName, heir: ChainName) -> BuiltObject:
    """Return the seal of a chain; ``name`` has its place there, ``heir`` seals it."""
    row = SealRow(heir.chain_id.bytes, heir.broker_id, 0, name.created_ms)
    return _assemble(name, WalKind.SEAL, [], {WalSection.SEAL: pack_rows(WalSection.SEAL, [row])})


def build_checkpoint(
    name: ObjectName,
    *,
    untiered: Iterable[ReferenceRow],
    snapshots: Iterable[Snapshot],
    epochs: Iterable[EpochRow],
    marks: Iterable[MarkRow],
) -> BuiltObject:
    """Return the checkpoint of all objects below ``name.sequence``.

    ``untiered`` names every slice of a led partition that the tier lacks, whichever chain has it.
    Its rows have no batches: the snapshots have what follows from them.
    """
    body: list[Buffer] = []
    rows: list[SnapshotRow] = []
    position = HEADER_SIZE
    for one in snapshots:
        rows.append(
            SnapshotRow(
                one.topic_id.bytes,
                one.partition,
                one.leader_epoch + 1,
                one.end_offset,
                position,
                len(one.data),
                crc32c(one.data),
            )
        )
        body.append(one.data)
        position += len(one.data)
    sections = {
        WalSection.REFERENCES: pack_rows(WalSection.REFERENCES, untiered),
        WalSection.EPOCHS: pack_rows(WalSection.EPOCHS, epochs),
        WalSection.MARKS: pack_rows(WalSection.MARKS, marks),
        WalSection.SNAPSHOTS: pack_rows(WalSection.SNAPSHOTS, rows),
    }
    return _assemble(name, WalKind.CHECKPOINT, body, sections)


def refer_to(
    one: WalSlice,
    *,
    gateway: ChainName,
    sequence: int,
    position: int,
    leader_epoch: int,
    base_offset: int,
) -> ForeignSlice:
    """Return a reference to a foreign slice at the position of a gateway's object.

    Its first record gets ``base_offset``. Raises ``CorruptRecordBatch``.
    """
    scan = scan_slice(one.data, position, is_foreign=True)
    rows = tuple(RowTable(BatchRow, WalSection.BATCHES, memoryview(scan.rows)))
    return ForeignSlice(gateway, sequence, leader_epoch, base_offset, _slice_row(one, scan), rows)


def _slice_row(place: SlicePlace, scan: SliceScan) -> SliceRow:
    scan.finish()
    if not scan.batch_count:
        raise ValueError(f"a slice of partition {place.partition} has no batch")
    return SliceRow(
        topic_id=place.topic_id.bytes,
        partition=place.partition,
        leader_epoch=place.leader_epoch,
        base_offset=scan.base_offset,
        end_offset=scan.end_offset,
        max_timestamp_ms=scan.max_timestamp_ms,
        position=scan.position,
        size_bytes=scan.size_bytes,
        batch_count=scan.batch_count,
        crc32c=scan.crc,
        flags=FOREIGN if scan.is_foreign else 0,
    )


def _reference_row(reference: ForeignSlice) -> ReferenceRow:
    row = reference.row
    return ReferenceRow(
        topic_id=row.topic_id,
        chain_id=reference.gateway.chain_id.bytes,
        broker_id=reference.gateway.broker_id,
        partition=row.partition,
        leader_epoch=reference.leader_epoch,
        batch_count=row.batch_count,
        sequence=reference.sequence,
        base_offset=reference.base_offset,
        end_offset=reference.base_offset + row.end_offset,
        max_timestamp_ms=row.max_timestamp_ms,
        position=row.position,
        size_bytes=row.size_bytes,
        crc32c=row.crc32c,
    )


def _rows_with_offsets(reference: ForeignSlice) -> Iterable[BatchRow]:
    """Return the rows of the foreign batches with the offsets that they have got."""
    for row in reference.batches:
        yield row._replace(base_offset=reference.base_offset + row.base_offset)


class ObjectFrame(NamedTuple):
    """The bytes of an object around its body."""

    header: WalHeader
    head: bytes  # before the body: the header
    tail: bytes  # behind it: padding, footer, trailer


def frame_object(
    name: ObjectName, kind: WalKind, body_size: int, sections: Mapping[WalSection, bytes]
) -> ObjectFrame:
    """Return the bytes around a body of this size.

    Raises ``ValueError`` if the object or its footer would be larger than readers accept.
    """
    filled = {number: data for number, data in sections.items() if data}
    body_end = HEADER_SIZE + body_size
    footer_position = aligned(body_end)
    table_end = HEADER_SIZE + SECTION.size * len(filled)
    table, section_parts = pack_sections(
        filled,
        footer_position + table_end + HEADER_CRC.size,
        row_sizes=ROW_SIZES_BYTES,
        required=REQUIRED_KINDS,
    )
    size = footer_position + table_end + HEADER_CRC.size
    size += sum(map(len, section_parts)) + TRAILER_SIZE
    if size > OBJECT_SIZE_BYTES_MAX:
        raise ValueError(f"an object of {size} bytes is larger than {OBJECT_SIZE_BYTES_MAX}")
    footer_size = size - footer_position - TRAILER_SIZE
    if footer_size > FOOTER_SIZE_BYTES_MAX:  # No reader would take it.
        raise ValueError(f"a footer of {footer_size} bytes is longer than {FOOTER_SIZE_BYTES_MAX}")
    header = WalHeader(
        kind=kind,
        section_count=len(filled),
        cluster_digest=cluster_digest(name.cluster_id),
        chain=name.chain,
        table_crc=crc32c(table),
        sequence=name.sequence,
        committed_end=name.committed_end,
        size_bytes=size,
        footer_position=footer_position,
        created_ms=name.created_ms,
        previous_crc=name.previous_crc,
        crc=0,
    )
    head = header.pack()
    footer = head + table
    tail = b"".join(
        [
            bytes(footer_position - body_end),
            footer,
            HEADER_CRC.pack(crc32c(footer), 0),
            *section_parts,
            pack_trailer(footer_position),
        ]
    )
    return ObjectFrame(header._replace(crc=int.from_bytes(head[-4:], "little")), head, tail)


def _assemble(
    name: ObjectName,
    kind: WalKind,
    body: Sequence[Buffer],
    sections: Mapping[WalSection, bytes],
) -> BuiltObject:
    frame = frame_object(name, kind, sum(map(len, body)), sections)
    return BuiltObject(frame.header, b"".join([frame.head, *body, frame.tail]))
