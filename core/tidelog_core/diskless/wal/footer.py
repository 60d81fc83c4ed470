"""Reads the objects of a chain: all but the data from an object's last bytes.

One ranged GET of the last 64 KiB has the footer of nearly every object. If it does not, the
trailer says where the footer begins (``missing_footer_range``). From any bytes a reader gets a
footer that agrees with itself, or ``CorruptObject`` with the key and the first damage.
"""

from __future__ import annotations

from dataclasses import dataclass

from crc32c import crc32c

from tidelog_core.diskless.wal.header import (
    HEADER_SIZE,
    TRAILER_SIZE,
    WalHeader,
    WalKind,
    read_header,
    read_trailer,
)
from tidelog_core.diskless.wal.rows import (
    FOREIGN,
    ROW_SIZES_BYTES,
    BatchRow,
    EpochRow,
    MarkRow,
    ReferenceRow,
    Row,
    RowTable,
    SealRow,
    SliceRow,
    SnapshotRow,
    WalSection,
)
from tidelog_core.errors import CorruptObject
from tidelog_core.records.header import Buffer
from tidelog_core.tier.sections import (
    ALIGNMENT,
    HEADER_CRC,
    SECTION,
    aligned,
    check_header_crc,
    parse_sections,
)

SUFFIX_SIZE_BYTES = 64 * 1024  # of the GET that usually has the whole footer
FOOTER_SIZE_BYTES_MAX = 64 * 1024 * 1024

_EMPTY = memoryview(b"")
_POSITION = SliceRow._fields.index("position")
_SIZE_BYTES = SliceRow._fields.index("size_bytes")
_CRC = SliceRow._fields.index("crc32c")


@dataclass(frozen=True, slots=True)
class WalFooter:
    """All of an object but its data. Tables are views of the bytes it was parsed from."""

    header: WalHeader
    slices: RowTable[SliceRow]
    batches: RowTable[BatchRow]  # those of the slices, then those of the references, in order
    references: RowTable[ReferenceRow]
    epochs: RowTable[EpochRow]
    marks: RowTable[MarkRow]
    seals: RowTable[SealRow]  # one row in a seal, none elsewhere
    snapshots: RowTable[SnapshotRow]

    @property
    def is_seal(self) -> bool:
        """Whether the object ends its chain."""
        return self.header.kind is WalKind.SEAL


def missing_footer_range(suffix: Buffer, *, object_size: int, key: str) -> tuple[int, int] | None:
    """Return the range ``[start, end)`` of the object to read before the suffix, if any.

    Raises ``CorruptObject`` if the suffix does not end an object.
    """
    start = object_size - len(suffix)
    try:
        position = read_trailer(memoryview(suffix))
        _check_footer_position(position, object_size)
    except ValueError as error:
        raise CorruptObject(key, str(error)) from None
    return (position, start) if position < start else None


def parse_footer(suffix: Buffer, *, object_size: int, key: str) -> WalFooter:
    """Return the footer in an object's last bytes, all CRCs but those of the data checked.

    Raises ``CorruptObject``; also if the suffix is shorter than the footer.
    """
    try:
        return _parse_footer(memoryview(suffix).toreadonly(), object_size)
    except ValueError as error:
        raise CorruptObject(key, str(error)) from None


def parse_object(data: Buffer, *, key: str) -> WalFooter:
    """Return the footer of a whole object after checking every byte of it."""
    view = memoryview(data).toreadonly()
    footer = parse_footer(view, object_size=len(view), key=key)
    try:
        if view[:HEADER_SIZE] != view[footer.header.footer_position :][:HEADER_SIZE]:
            raise ValueError("its header and the copy in its footer differ")
        for position, size, crc in _body_parts(footer):
            if crc32c(view[position : position + size]) != crc:
                raise ValueError(f"the CRC of the slice at {position} does not match")
        end = _body_end(footer)
        if any(view[end : footer.header.footer_position]):
            raise ValueError(f"there are bytes at {end} that no slice has")
    except ValueError as error:
        raise CorruptObject(key, str(error)) from None
    return footer


def _parse_footer(suffix: memoryview, object_size: int) -> WalFooter:
    start = object_size - len(suffix)
    position = read_trailer(suffix)
    _check_footer_position(position, object_size)
    if position < start:
        raise ValueError(f"its footer begins at {position}, the bytes that were read at {start}")
    footer = suffix[position - start : len(suffix) - TRAILER_SIZE]
    header = read_header(footer, 0)
    table_end = HEADER_SIZE + SECTION.size * header.section_count
    first = table_end + HEADER_CRC.size
    if header.size_bytes != object_size or header.footer_position != position:
        raise ValueError(
            f"it has {object_size} bytes and its footer at {position} instead of"
            f" {header.size_bytes} and {header.footer_position}"
        )
    if first > len(footer):
        raise ValueError(f"its footer cannot hold {header.section_count} sections")
    check_header_crc(footer, table_end)
    if crc32c(footer[HEADER_SIZE:table_end]) != header.table_crc:
        raise ValueError("its header is that of another table of sections")
    sections = parse_sections(
        footer,
        HEADER_SIZE,
        header.section_count,
        first=position + first,
        row_sizes=ROW_SIZES_BYTES,
        data_position=position,
    )
    _check_padding(footer, table_end, footer_position=position)

    def table(make: type[Row], kind: WalSection) -> RowTable[Row]:
        return RowTable(make, kind, sections.get(kind, _EMPTY))

    parsed = WalFooter(
        header,
        table(SliceRow, WalSection.SLICES),
        table(BatchRow, WalSection.BATCHES),
        table(ReferenceRow, WalSection.REFERENCES),
        table(EpochRow, WalSection.EPOCHS),
        table(MarkRow, WalSection.MARKS),
        table(SealRow, WalSection.SEAL),
        table(SnapshotRow, WalSection.SNAPSHOTS),
    )
    _check_kind(parsed)
    _check_rows(parsed)
    return parsed


def _check_footer_position(position: int, object_size: int) -> None:
    end = object_size - TRAILER_SIZE
    if not HEADER_SIZE <= position <= end - HEADER_SIZE or position % ALIGNMENT:
        raise ValueError(f"its footer cannot begin at {position} of {object_size} bytes")
    if end - position > FOOTER_SIZE_BYTES_MAX:
        raise ValueError(f"its footer of {end - position} bytes is longer than allowed")


def _check_padding(footer: memoryview, table_end: int, *, footer_position: int) -> None:
    """Raise ``ValueError`` unless sections follow each other, with zeros alone between them."""
    if HEADER_CRC.unpack_from(footer, table_end)[1]:
        raise ValueError("the bytes behind the CRC of its table are not zero")
    next_start = table_end + HEADER_CRC.size  # in the footer, as all positions here but those named
    for row in range(HEADER_SIZE, table_end, SECTION.size):
        _, _, position_in_object, size, _, _ = SECTION.unpack_from(footer, row)
        start = position_in_object - footer_position
        if start != next_start:
            raise ValueError(
                f"a section begins at {position_in_object} instead of"
                f" {footer_position + next_start}"
            )
        next_start = aligned(start + size)
        if any(footer[start + size : next_start]):
            raise ValueError(f"the bytes behind the section at {position_in_object} are not zero")
    if next_start != len(footer):
        raise ValueError(
            f"its sections end at {footer_position + next_start} instead of"
            f" {footer_position + len(footer)}"
        )


def _check_kind(footer: WalFooter) -> None:
    header = footer.header
    seal_count = 1 if header.kind is WalKind.SEAL else 0
    if len(footer.seals) != seal_count:
        raise ValueError(f"a {header.kind.name.lower()} object has {len(footer.seals)} seals")
    if seal_count and (header.section_count != 1 or header.committed_end != header.sequence):
        raise ValueError("a seal has more than who sealed, or objects are missing before it")
    if header.kind is WalKind.CHECKPOINT and (footer.slices or footer.batches):
        raise ValueError("a checkpoint has slices")
    if header.kind is not WalKind.CHECKPOINT and footer.snapshots:
        raise ValueError("it has snapshots and is no checkpoint")


def _check_rows(footer: WalFooter) -> None:
    _check_body_layout(footer)
    batch_count = _check_slices(footer) + _check_references(footer)
    if footer.header.kind is WalKind.DATA and batch_count != len(footer.batches):
        raise ValueError(f"it has {len(footer.batches)} batches instead of {batch_count}")


def _check_body_layout(footer: WalFooter) -> None:
    """Raise ``ValueError`` unless the parts of the body follow each other up to the footer."""
    position = HEADER_SIZE
    for start, size, _ in _body_parts(footer):
        if start != position:
            raise ValueError(f"a slice begins at {start} instead of {position}")
        position += size
    if aligned(position) != footer.header.footer_position:
        raise ValueError(f"its slices end at {position} instead of the footer's position")


def _check_slices(footer: WalFooter) -> int:
    """Return the number of batches in the slices. Raises ``ValueError``."""
    batch_count = 0
    for fields in footer.slices.fields(0, len(footer.slices)):
        _, partition, _, base_offset, end_offset, _, _, _, count, _, flags, _ = fields
        batch_count += count
        base = 0 if flags & FOREIGN else base_offset
        if partition < 0 or flags > 1 or base < 0 or end_offset <= base:
            raise ValueError(f"a slice of partition {partition} has offsets [{base}, {end_offset})")
    return batch_count


def _check_references(footer: WalFooter) -> int:
    """Return the number of batches in the referenced slices. Raises ``ValueError``."""
    batch_count = 0
    for fields in footer.references.fields(0, len(footer.references)):
        _, _, _, partition, _, count, _, base, end_offset, *_ = fields
        batch_count += count
        if partition < 0 or not 0 <= base < end_offset:
            raise ValueError(
                f"a reference of partition {partition} has offsets [{base}, {end_offset})"
            )
    return batch_count


def _body_parts(footer: WalFooter) -> list[tuple[int, int, int]]:
    """Return position, size and CRC of each part of the body."""
    rows = footer.slices.fields(0, len(footer.slices))
    parts = [(fields[_POSITION], fields[_SIZE_BYTES], fields[_CRC]) for fields in rows]
    return parts + [(row.position, row.size_bytes, row.crc32c) for row in footer.snapshots]


def _body_end(footer: WalFooter) -> int:
    return HEADER_SIZE + sum(size for _, size, _ in _body_parts(footer))
