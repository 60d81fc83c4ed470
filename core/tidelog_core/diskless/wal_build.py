"""Builds the objects of a chain from runs of batches: bytes in, bytes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from tidelog_core.diskless.wal_footer import FOOTER_SIZE_BYTES_MAX
from tidelog_core.diskless.wal_header import (
    HEADER_SIZE,
    OBJECT_SIZE_BYTES_MAX,
    TRAILER_SIZE,
    WalHeader,
    WalKind,
    cluster_digest,
    pack_trailer,
)
from tidelog_core.diskless.wal_rows import (
    FOREIGN,
    NO_MARKER,
    REQUIRED_KINDS,
    ROW_SIZES_BYTES,
    BatchRow,
    EpochRow,
    MarkRow,
    ReferenceRow,
    SealRow,
    SliceRow,
    SnapshotRow,
    WalSection,
    pack_rows,
)
from tidelog_core.log.batch_scan import read_marker
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.records.header import BatchHeader, Buffer, iter_headers
from tidelog_core.tier.sections import (
    HEADER_CRC,
    SECTION,
    aligned,
    pack_sections,
)

_ATTRIBUTES_MASK = 0xFFFF


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


class BuiltObject(NamedTuple):
    """The bytes of an object, and its header."""

    header: WalHeader
    data: bytes


def build_data_object(
    name: ObjectName,
    slices: Iterable[WalSlice],
    *,
    references: Iterable[ForeignSlice] = (),
    epochs: Iterable[EpochRow] = (),
    marks: Iterable[MarkRow] = (),
) -> BuiltObject:
    """Return the object with these slices in their order.

    Every batch must be whole: raises ``CorruptRecordBatch``. CRCs of batches are not checked
    again, they were when the batches were appended.
    """
    body: list[Buffer] = []
    slice_rows: list[SliceRow] = []
    batch_rows: list[BatchRow] = []
    position = HEADER_SIZE
    for one in slices:
        rows = batch_rows_of(one.data, position, is_foreign=one.is_foreign)
        slice_rows.append(_slice_row(one, position, rows))
        batch_rows += rows
        body.append(one.data)
        position += len(one.data)
    reference_rows: list[ReferenceRow] = []
    for reference in references:
        reference_rows.append(_reference_row(reference))
        batch_rows += _moved(reference)
    sections = {
        WalSection.SLICES: pack_rows(WalSection.SLICES, slice_rows),
        WalSection.BATCHES: pack_rows(WalSection.BATCHES, batch_rows),
        WalSection.REFERENCES: pack_rows(WalSection.REFERENCES, reference_rows),
        WalSection.EPOCHS: pack_rows(WalSection.EPOCHS, epochs),
        WalSection.MARKS: pack_rows(WalSection.MARKS, marks),
    }
    return _assemble(name, WalKind.DATA, body, sections)


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
                0,
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
    rows = batch_rows_of(one.data, position, is_foreign=True)
    row = _slice_row(one, position, rows)
    return ForeignSlice(gateway, sequence, leader_epoch, base_offset, row, rows)


def batch_rows_of(data: Buffer, position: int, *, is_foreign: bool = False) -> list[BatchRow]:
    """Return a row per batch of the run that begins at the position of an object."""
    rows: list[BatchRow] = []
    next_offset = 0
    for at, header in iter_headers(data):
        base_offset = header.base_offset
        if is_foreign:
            base_offset, next_offset = next_offset, next_offset + header.last_offset_delta + 1
        rows.append(_batch_row(data, at, header, base_offset, position + at))
    return rows


def _batch_row(
    data: Buffer, at: int, header: BatchHeader, base_offset: int, position: int
) -> BatchRow:
    marker = read_marker(data, at, header)
    return BatchRow(
        base_offset=base_offset,
        producer_id=header.producer_id,
        base_timestamp_ms=header.base_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms,
        last_offset_delta=header.last_offset_delta,
        base_sequence=header.base_sequence,
        record_count=header.record_count,
        position=position,
        size_bytes=header.size_bytes,
        coordinator_epoch=-1 if marker is None else marker.coordinator_epoch,
        producer_epoch=header.producer_epoch,
        attributes=header.attributes & _ATTRIBUTES_MASK,
        marker=NO_MARKER if marker is None else marker.type,
    )


def _slice_row(one: WalSlice, position: int, rows: Sequence[BatchRow]) -> SliceRow:
    if not rows:
        raise ValueError(f"a slice of partition {one.partition} has no batch")
    return SliceRow(
        topic_id=one.topic_id.bytes,
        partition=one.partition,
        leader_epoch=one.leader_epoch,
        base_offset=-1 if one.is_foreign else rows[0].base_offset,
        end_offset=rows[-1].base_offset + rows[-1].last_offset_delta + 1,
        max_timestamp_ms=max(row.max_timestamp_ms for row in rows),
        position=position,
        size_bytes=len(one.data),
        batch_count=len(rows),
        crc32c=crc32c(one.data),
        flags=FOREIGN if one.is_foreign else 0,
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


def _moved(reference: ForeignSlice) -> Iterable[BatchRow]:
    """Return the rows of the foreign batches with the offsets that they have got."""
    for row in reference.batches:
        yield row._replace(base_offset=reference.base_offset + row.base_offset)


def _assemble(
    name: ObjectName,
    kind: WalKind,
    body: Sequence[Buffer],
    sections: Mapping[WalSection, bytes],
) -> BuiltObject:
    there = {number: data for number, data in sections.items() if data}
    body_end = HEADER_SIZE + sum(map(len, body))
    footer_position = aligned(body_end)
    table_end = HEADER_SIZE + SECTION.size * len(there)
    table, section_parts = pack_sections(
        there,
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
        section_count=len(there),
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
    data = b"".join(
        [
            head,
            *body,
            bytes(footer_position - body_end),
            footer,
            HEADER_CRC.pack(crc32c(footer), 0),
            *section_parts,
            pack_trailer(footer_position),
        ]
    )
    return BuiltObject(header._replace(crc=int.from_bytes(head[-4:], "little")), data)
