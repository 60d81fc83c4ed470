"""The index object of a tiered segment: everything that readers need besides the records.

The layout, in words and tables, is ``docs/format.md``; numbers are little-endian. In
short: a fixed header, a table of sections, a CRC-32C of both, then the sections, each
at a multiple of 8 bytes and with a CRC-32C of its own in the table. ``batches`` has
one row of 40 bytes per record batch, so ``numpy.frombuffer`` reads it as it is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from tidelog_core.errors import CorruptObject
from tidelog_core.log.segments.time_index import TimeIndex
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.records.batch import BatchHeader, Buffer
from tidelog_core.tier.key_filter import KeyFilter
from tidelog_core.tier.sections import (
    HEADER_CRC,
    SECTION,
    SECTION_COUNT_MAX,
    aligned,
    check_header_crc,
    pack_sections,
    parse_sections,
)
from tidelog_core.tier.segment_scan import BATCH_ROW, FLAGS_MASK

MAGIC = b"TLINDEX\0"
VERSION = 1

HEADER = Struct("<8sHHIqqQQqIIii16s16sQ")
ABORTED_ROW = Struct("<qqqq")
LEADER_EPOCH_ROW = Struct("<qq")
CHAIN = Struct("<32s32s32s")
REWRITE = Struct("<qq")
REPLACED_ROW = Struct("<16sqqQ32s32s32s")
_I64, _U32 = Struct("<q"), Struct("<I")


class SectionKind(IntEnum):
    """The content of a section."""

    BATCHES = 1
    OFFSET_INDEX = 2
    TIME_INDEX = 3
    ABORTED_TRANSACTIONS = 4
    PRODUCER_SNAPSHOT = 5
    LEADER_EPOCHS = 6
    KEY_FILTER = 7
    CHAIN = 8
    REWRITE = 9
    REPLACED = 10


ROW_SIZES_BYTES: Mapping[int, int] = {
    SectionKind.BATCHES: BATCH_ROW.size,
    SectionKind.OFFSET_INDEX: 8,
    SectionKind.TIME_INDEX: 12,
    SectionKind.ABORTED_TRANSACTIONS: ABORTED_ROW.size,
    SectionKind.PRODUCER_SNAPSHOT: 1,
    SectionKind.LEADER_EPOCHS: LEADER_EPOCH_ROW.size,
    SectionKind.KEY_FILTER: 1,
    SectionKind.CHAIN: CHAIN.size,
    SectionKind.REWRITE: REWRITE.size,
    SectionKind.REPLACED: REPLACED_ROW.size,
}
REQUIRED_KINDS = frozenset(
    # A reader that ignores rewriting would treat the replaced segments as current.
    {SectionKind.BATCHES, SectionKind.ABORTED_TRANSACTIONS, SectionKind.REWRITE}
)


class BatchRow(NamedTuple):
    """One record batch of the segment."""

    base_offset: int
    last_offset: int  # inclusive
    max_timestamp_ms: int
    position: int  # bytes from the start of the segment
    size_bytes: int
    record_count: int
    flags: int  # the batch's attributes: codec, LogAppendTime, transactional, control


class ReplacedSegment(NamedTuple):
    """A segment that a rewritten one replaces: its link in the chain of hashes."""

    segment_id: UUID
    base_offset: int
    end_offset: int  # exclusive
    size_bytes: int
    previous_hash: bytes
    log_sha256: bytes
    chained_hash: bytes


def batch_row(position: int, header: BatchHeader) -> BatchRow:
    """Return the row of the batch that begins at the position of the segment."""
    return BatchRow(
        header.base_offset,
        header.last_offset,
        header.max_timestamp_ms,
        position,
        header.size_bytes,
        header.record_count,
        header.attributes & FLAGS_MASK,
    )


class BatchTable(Sequence[BatchRow]):
    """The batches of a segment, in order of offset and of position."""

    __slots__ = ("buffer",)

    def __init__(self, buffer: memoryview) -> None:
        self.buffer = buffer  # rows of BATCH_ROW, for numpy.frombuffer

    def __len__(self) -> int:
        return len(self.buffer) // BATCH_ROW.size

    def __getitem__(self, row: int) -> BatchRow:  # type: ignore[override]  # no slices
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return BatchRow(*BATCH_ROW.unpack_from(self.buffer, row * BATCH_ROW.size))

    def __iter__(self) -> Iterator[BatchRow]:
        return map(BatchRow._make, BATCH_ROW.iter_unpack(self.buffer))

    def row_of_offset(self, offset: int) -> int:
        """Return the first row whose batch ends at or after ``offset``; ``len`` if none does."""
        return bisect_left(range(len(self)), offset, key=self._last_offset)

    def row_at_position(self, position: int) -> int:
        """Return the first row whose batch begins at or after ``position``; ``len`` if none."""
        return bisect_left(range(len(self)), position, key=self._position)

    # Searches read one field of a row, not all: every cold read does several.

    def _last_offset(self, row: int) -> int:
        last_offset: int = _I64.unpack_from(self.buffer, row * BATCH_ROW.size + 8)[0]
        return last_offset

    def _position(self, row: int) -> int:
        position: int = _U32.unpack_from(self.buffer, row * BATCH_ROW.size + 24)[0]
        return position


class IndexHeader(NamedTuple):
    """The fields of an index object's header that describe its segment."""

    base_offset: int
    end_offset: int  # exclusive
    log_size_bytes: int
    record_count: int
    max_timestamp_ms: int
    log_crc32c: int
    leader_epoch: int
    partition: int
    topic_id: UUID
    segment_id: UUID


class _Layout(NamedTuple):
    """The other fields of the header, which say how the object is laid out."""

    section_count: int
    header_size: int  # bytes before the first section
    batch_count: int


@dataclass(frozen=True)
class IndexFile:
    """A parsed index object. Sections are views of the bytes it was parsed from."""

    base_offset: int
    end_offset: int  # exclusive
    log_size_bytes: int
    record_count: int
    max_timestamp_ms: int
    log_crc32c: int
    leader_epoch: int
    partition: int
    topic_id: UUID
    segment_id: UUID
    sections: Mapping[int, memoryview]
    size_bytes: int

    @classmethod
    def parse(cls, data: Buffer, *, key: str = "index") -> IndexFile:
        """Return the index in ``data`` after checking all of its CRCs.

        Raises ``CorruptObject`` with ``key`` and the first damage.
        """
        try:
            return _parse(memoryview(data).toreadonly())
        except ValueError as error:
            raise CorruptObject(key, str(error)) from None

    @cached_property
    def batches(self) -> BatchTable:
        """One row per record batch."""
        return BatchTable(self._section(SectionKind.BATCHES))

    @property
    def offset_index(self) -> memoryview:
        """The content of the segment's ``.index`` file on the node."""
        return self._section(SectionKind.OFFSET_INDEX)

    @property
    def time_index(self) -> memoryview:
        """The content of the segment's ``.timeindex`` file on the node."""
        return self._section(SectionKind.TIME_INDEX)

    @property
    def producer_snapshot(self) -> memoryview:
        """The producers' state at the end offset, as in the node's ``.snapshot`` file."""
        return self._section(SectionKind.PRODUCER_SNAPSHOT)

    @cached_property
    def aborted(self) -> tuple[AbortedTransaction, ...]:
        """Every aborted transaction that has records in the segment, by its marker's offset."""
        rows = ABORTED_ROW.iter_unpack(self._section(SectionKind.ABORTED_TRANSACTIONS))
        return tuple(AbortedTransaction(*row) for row in rows)

    @cached_property
    def leader_epochs(self) -> tuple[tuple[int, int], ...]:
        """Each leader epoch of the segment with its first offset, ascending."""
        rows = LEADER_EPOCH_ROW.iter_unpack(self._section(SectionKind.LEADER_EPOCHS))
        return tuple((epoch, offset) for epoch, offset in rows)

    @cached_property
    def key_filter(self) -> KeyFilter | None:
        """The filter of keys that are certainly absent; ``None`` if the segment has none."""
        section = self.sections.get(SectionKind.KEY_FILTER)
        return None if section is None else KeyFilter.parse(section)

    @property
    def previous_hash(self) -> bytes:
        """The chained hash of the segment before, zeros for the first."""
        return self._chain[0]

    @property
    def log_sha256(self) -> bytes:
        """The SHA-256 of the segment's bytes."""
        return self._chain[1]

    @property
    def chained_hash(self) -> bytes:
        """The chained hash of the partition up to and including this segment."""
        return self._chain[2]

    @property
    def rewrite_epoch(self) -> int:
        """The epoch of the claim under which it was rewritten; 0 for a copied segment."""
        return self._rewrite[0]

    @property
    def compacted_up_to(self) -> int:
        """No record in the segment has a newer one of its key below this offset; 0: unknown."""
        return self._rewrite[1]

    @cached_property
    def replaced(self) -> tuple[ReplacedSegment, ...]:
        """The segments that it replaces in the chain of hashes; empty for a copied segment."""
        rows = REPLACED_ROW.iter_unpack(self._section(SectionKind.REPLACED))
        return tuple(ReplacedSegment(UUID(bytes=row[0]), *row[1:]) for row in rows)

    def row_of_timestamp(self, timestamp_ms: int) -> int | None:
        """Return the first row whose greatest timestamp reaches ``timestamp_ms``, if any."""
        start_offset = TimeIndex(self.base_offset, bytes(self.time_index)).lookup(timestamp_ms)
        batches = self.batches
        for row in range(batches.row_of_offset(start_offset), len(batches)):
            if batches[row].max_timestamp_ms >= timestamp_ms:
                return row
        return None

    @cached_property
    def _chain(self) -> tuple[bytes, bytes, bytes]:
        previous, log_sha256, chained = CHAIN.unpack(self._section(SectionKind.CHAIN))
        return previous, log_sha256, chained

    @cached_property
    def _rewrite(self) -> tuple[int, int]:
        section = self._section(SectionKind.REWRITE)
        rewrite_epoch, compacted_up_to = REWRITE.unpack(section) if section else (0, 0)
        return rewrite_epoch, compacted_up_to

    def _section(self, kind: SectionKind) -> memoryview:
        return self.sections.get(kind, _EMPTY)


_EMPTY = memoryview(b"")


def crc32c_of(data: Buffer) -> int:
    """Return the CRC-32C (Castagnoli) of the bytes."""
    return crc32c(data)


def pack_index_file(header: IndexHeader, sections: Mapping[SectionKind, bytes]) -> bytes:
    """Return the index object with this header and these sections."""
    table_end = HEADER.size + SECTION.size * len(sections)
    header_size = aligned(table_end + HEADER_CRC.size)
    table, body = pack_sections(
        sections, header_size, row_sizes=ROW_SIZES_BYTES, required=REQUIRED_KINDS
    )
    fixed = HEADER.pack(
        MAGIC,
        VERSION,
        len(sections),
        header_size,
        header.base_offset,
        header.end_offset,
        header.log_size_bytes,
        header.record_count,
        header.max_timestamp_ms,
        header.log_crc32c,
        len(sections[SectionKind.BATCHES]) // BATCH_ROW.size,
        header.leader_epoch,
        header.partition,
        header.topic_id.bytes,
        header.segment_id.bytes,
        header_size + sum(map(len, body)),
    )
    head = fixed + table
    head += HEADER_CRC.pack(crc32c(head), 0)
    return b"".join([head, bytes(header_size - len(head)), *body])


def _parse(data: memoryview) -> IndexFile:
    header, layout = _parse_header(data)
    sections = parse_sections(
        data,
        HEADER.size,
        layout.section_count,
        first=layout.header_size,
        row_sizes=ROW_SIZES_BYTES,
    )
    index = IndexFile(**header._asdict(), sections=sections, size_bytes=len(data))
    if len(index.batches) != layout.batch_count:
        raise ValueError(f"it has {len(index.batches)} batches instead of {layout.batch_count}")
    if SectionKind.CHAIN not in sections:
        raise ValueError("it has no chained hash")
    if len(sections.get(SectionKind.REWRITE, _EMPTY)) not in {0, REWRITE.size}:
        raise ValueError("it says more than once how it was rewritten")
    if index.key_filter is not None and index.key_filter.key_count > header.record_count:
        raise ValueError("its key filter has more keys than there are records")
    return index


def _parse_header(data: memoryview) -> tuple[IndexHeader, _Layout]:
    if len(data) < HEADER.size:
        raise ValueError(f"it has {len(data)} bytes, less than a header takes")
    (
        magic,
        version,
        section_count,
        header_size,
        base_offset,
        end_offset,
        log_size_bytes,
        record_count,
        max_timestamp_ms,
        log_crc32c,
        batch_count,
        leader_epoch,
        partition,
        topic_id,
        segment_id,
        file_size,
    ) = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ValueError(f"it starts with {bytes(magic)!r} instead of {MAGIC!r}")
    if version != VERSION:
        raise ValueError(f"its version is {version}; {VERSION} is known")
    if file_size != len(data):
        raise ValueError(f"it has {len(data)} bytes instead of {file_size}")
    table_end = HEADER.size + SECTION.size * section_count
    has_room = table_end + HEADER_CRC.size <= header_size <= len(data)
    if section_count > SECTION_COUNT_MAX or not has_room:
        raise ValueError(f"its header cannot hold {section_count} sections")
    check_header_crc(data, table_end)
    header = IndexHeader(
        base_offset,
        end_offset,
        log_size_bytes,
        record_count,
        max_timestamp_ms,
        log_crc32c,
        leader_epoch,
        partition,
        UUID(bytes=topic_id),
        UUID(bytes=segment_id),
    )
    return header, _Layout(section_count, header_size, batch_count)
