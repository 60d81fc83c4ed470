"""The sections of WAL objects: what a row of each is, and tables that read rows in place.

One table of fields makes a section's ``struct`` and its numpy dtype: ``numpy.frombuffer(
table.buffer, table.layout.fields)`` reads a section as it is. Numbers are little-endian. The
layout in words is in ``docs/format.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from struct import Struct
from typing import Any, Generic, NamedTuple, TypeVar

_FORMATS: Mapping[str, str] = {
    "V16": "16s",
    "<i8": "q",
    "<u8": "Q",
    "<i4": "i",
    "<u4": "I",
    "<i2": "h",
    "<u2": "H",
}
FOREIGN = 1  # flag of a slice: a gateway's, whose offsets another chain's reference assigns
NO_MARKER = -1  # of a batch that ends no transaction


class WalSection(IntEnum):
    """The content of a section."""

    SLICES = 1
    BATCHES = 2
    REFERENCES = 3
    EPOCHS = 4
    MARKS = 5
    SEAL = 6
    SNAPSHOTS = 7


class RowLayout:
    """The fields of a section's rows, by name and numpy type."""

    __slots__ = ("fields", "struct")

    def __init__(self, *fields: tuple[str, str]) -> None:
        self.fields = list(fields)  # for numpy.dtype
        self.struct = Struct("<" + "".join(_FORMATS[kind] for _, kind in fields))


class SliceRow(NamedTuple):
    """A run of batches of one partition in the object."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    base_offset: int  # -1 of a foreign slice
    end_offset: int  # exclusive; of a foreign slice the number of offsets that it takes
    max_timestamp_ms: int
    position: int  # bytes from the start of the object
    size_bytes: int
    batch_count: int  # rows of the batches section that are this slice's
    crc32c: int
    flags: int
    reserved: int = 0

    @property
    def is_foreign(self) -> bool:
        """Whether another chain's reference assigns its offsets."""
        return self.flags & FOREIGN != 0


class BatchRow(NamedTuple):
    """A record batch of a slice, or of a reference."""

    base_offset: int  # of a foreign slice's from 0 on
    producer_id: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    last_offset_delta: int
    base_sequence: int
    record_count: int
    position: int  # bytes from the start of the object that has it
    size_bytes: int
    coordinator_epoch: int  # of the marker; -1 without one
    producer_epoch: int
    attributes: int
    marker: int  # 0 abort, 1 commit, -1 if the batch ends no transaction
    reserved: int = 0


class ReferenceRow(NamedTuple):
    """A slice in another object, and the offsets that its leader has given it."""

    topic_id: bytes
    chain_id: bytes
    broker_id: int
    partition: int
    leader_epoch: int
    batch_count: int
    sequence: int
    base_offset: int
    end_offset: int  # exclusive
    max_timestamp_ms: int
    position: int
    size_bytes: int
    crc32c: int
    reserved: int = 0


class EpochRow(NamedTuple):
    """A leader epoch that begins in this chain, and where the one before ended."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    first_offset: int
    previous_chain_id: bytes  # zeros if there was no chain before
    previous_broker_id: int
    reserved: int
    previous_sequence: int  # of the seal that ended it; -1 if it goes on without the partition


class MarkRow(NamedTuple):
    """Offsets of a partition that have moved."""

    topic_id: bytes
    partition: int
    reserved: int
    log_start_offset: int
    tiered_end_offset: int  # exclusive


class SealRow(NamedTuple):
    """The heir that sealed the chain, and when."""

    heir_chain_id: bytes
    heir_broker_id: int
    reserved: int
    sealed_ms: int  # Unix time, by the heir's clock


class SnapshotRow(NamedTuple):
    """A partition's producers and open transactions in a checkpoint."""

    topic_id: bytes
    partition: int
    epoch_end: int  # the leader epoch in which they were taken, plus 1; 0: nobody has said
    end_offset: int  # exclusive: they are as of there
    position: int  # bytes from the start of the checkpoint
    size_bytes: int
    crc32c: int


_NAME = (("topic_id", "V16"), ("partition", "<i4"))
LAYOUTS: Mapping[WalSection, RowLayout] = {
    WalSection.SLICES: RowLayout(
        *(*_NAME, ("leader_epoch", "<i4"), ("base_offset", "<i8"), ("end_offset", "<i8")),
        *(("max_timestamp_ms", "<i8"), ("position", "<u4"), ("size_bytes", "<u4")),
        *(("batch_count", "<u4"), ("crc32c", "<u4"), ("flags", "<u4"), ("reserved", "<u4")),
    ),
    WalSection.BATCHES: RowLayout(
        *(("base_offset", "<i8"), ("producer_id", "<i8"), ("base_timestamp_ms", "<i8")),
        *(("max_timestamp_ms", "<i8"), ("last_offset_delta", "<i4"), ("base_sequence", "<i4")),
        *(("record_count", "<i4"), ("position", "<u4"), ("size_bytes", "<u4")),
        *(("coordinator_epoch", "<i4"), ("producer_epoch", "<i2"), ("attributes", "<u2")),
        *(("marker", "<i2"), ("reserved", "<u2")),
    ),
    WalSection.REFERENCES: RowLayout(
        *(("topic_id", "V16"), ("chain_id", "V16"), ("broker_id", "<i4"), ("partition", "<i4")),
        *(("leader_epoch", "<i4"), ("batch_count", "<u4"), ("sequence", "<i8")),
        *(("base_offset", "<i8"), ("end_offset", "<i8"), ("max_timestamp_ms", "<i8")),
        *(("position", "<u4"), ("size_bytes", "<u4"), ("crc32c", "<u4"), ("reserved", "<u4")),
    ),
    WalSection.EPOCHS: RowLayout(
        *(*_NAME, ("leader_epoch", "<i4"), ("first_offset", "<i8")),
        *(("previous_chain_id", "V16"), ("previous_broker_id", "<i4"), ("reserved", "<u4")),
        ("previous_sequence", "<i8"),
    ),
    WalSection.MARKS: RowLayout(
        *(*_NAME, ("reserved", "<u4"), ("log_start_offset", "<i8"), ("tiered_end_offset", "<i8")),
    ),
    WalSection.SEAL: RowLayout(
        *(("heir_chain_id", "V16"), ("heir_broker_id", "<i4"), ("reserved", "<u4")),
        ("sealed_ms", "<i8"),
    ),
    WalSection.SNAPSHOTS: RowLayout(
        *(*_NAME, ("epoch_end", "<u4"), ("end_offset", "<i8"), ("position", "<u8")),
        *(("size_bytes", "<u4"), ("crc32c", "<u4")),
    ),
}
ROW_SIZES_BYTES: Mapping[int, int] = {kind: layout.struct.size for kind, layout in LAYOUTS.items()}
# A reader that skipped one of these would miss records, or take garbage for records.
REQUIRED_KINDS = frozenset(
    {WalSection.SLICES, WalSection.REFERENCES, WalSection.EPOCHS, WalSection.SEAL}
)

Row = TypeVar("Row", bound=tuple[object, ...])


class RowTable(Sequence[Row], Generic[Row]):
    """A section's rows, read where they are."""

    __slots__ = ("_make", "buffer", "layout")

    def __init__(self, make: type[Row], kind: WalSection, buffer: memoryview) -> None:
        self._make = make
        self.layout = LAYOUTS[kind]
        self.buffer = buffer  # for numpy.frombuffer

    def __len__(self) -> int:
        return len(self.buffer) // self.layout.struct.size

    def __getitem__(self, row: int) -> Row:  # type: ignore[override]  # no slices
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self._make(
            *self.layout.struct.unpack_from(self.buffer, row * self.layout.struct.size)
        )

    def __iter__(self) -> Iterator[Row]:
        for row in self.layout.struct.iter_unpack(self.buffer):
            yield self._make(*row)

    def fields(self, first: int, count: int) -> Iterator[tuple[Any, ...]]:
        """Yield the fields of up to ``count`` rows from the first on.

        For callers that need few rows of many: making a row costs five times as much.
        """
        size_bytes = self.layout.struct.size
        part = self.buffer[first * size_bytes : (first + count) * size_bytes]
        return self.layout.struct.iter_unpack(part)


class RowRange(Sequence[Row], Generic[Row]):
    """Some consecutive rows of a table, read where they are."""

    __slots__ = ("_count", "_start", "_table")

    def __init__(self, table: RowTable[Row], start: int, count: int) -> None:
        self._table = table
        self._start = start
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> Row:  # type: ignore[override]  # no slices
        if not 0 <= row < self._count:
            raise IndexError(f"row {row} of {self._count}")
        return self._table[self._start + row]


def pack_rows(kind: WalSection, rows: Iterable[tuple[object, ...]]) -> bytes:
    """Return the section with these rows. Raises ``struct.error`` if a field does not fit."""
    pack = LAYOUTS[kind].struct.pack
    return b"".join(pack(*row) for row in rows)
