"""Indexes of chains: checkpoints with the slices of many objects, so that few are read.

An owner writes one every so often, of objects that are committed. It has a reference for each slice
and reference in the objects ``[start, end)`` of its chain, in their order, and says by which object
each one got its offsets. Where the objects were deleted since, the tier has the records. An index
is an aid: what it says is never wrong, and without it the footers say the same.

It may have snapshots too: the producers of partitions that the owner led, each at an offset below
which the chain had committed everything. A snapshot may be of any age: committed records stay
committed.

In its header the sequence is the end, as in every checkpoint, and the committed end is the start.
Other checkpoints have their end in both.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from tidelog_core.diskless.wal.build import BuiltObject, ObjectName, Snapshot, build_checkpoint
from tidelog_core.diskless.wal.footer import WalFooter, parse_object
from tidelog_core.diskless.wal.header import WalKind, check_key
from tidelog_core.diskless.wal.keys import WalKey
from tidelog_core.diskless.wal.rows import ReferenceRow, RowTable, SliceRow, WalSection, pack_rows
from tidelog_core.errors import CorruptObject
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.records.header import Buffer

_TOPIC_ID = ReferenceRow._fields.index("topic_id")
_PARTITION = ReferenceRow._fields.index("partition")
_LEADER_EPOCH = ReferenceRow._fields.index("leader_epoch")
_NUMBER = ReferenceRow._fields.index("reserved")  # of the object, from the index's start on


class IndexedSlice(NamedTuple):
    """A committed slice, and the sequence of the object that gives it its offsets."""

    sequence: int
    row: ReferenceRow


class ChainIndex(NamedTuple):
    """An index that was read."""

    chain: ChainName
    start: int  # it has the objects from there
    end: int  # up to there, exclusive
    rows: RowTable[ReferenceRow]
    snapshots: tuple[Snapshot, ...] = ()

    def slices(self) -> Iterator[IndexedSlice]:
        """Yield the slices in the order of their objects."""
        for row in self.rows:
            yield IndexedSlice(self.start + row.reserved, row._replace(reserved=0))

    def fields_of(
        self, partitions: Container[tuple[bytes, int]], first: int, count: int
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the rows' fields of the slices of these partitions, by topic id and number.

        ``first`` and ``count`` name the rows. Most are of partitions that the caller does not want,
        and a row takes several times as long to make. ``sequence_of`` has the object of each.
        """
        for fields in self.rows.fields(first, count):
            if (fields[_TOPIC_ID], fields[_PARTITION]) in partitions:
                yield fields

    def sequence_of(self, fields: tuple[Any, ...]) -> int:
        """Return the sequence of the object that gives a slice its offsets."""
        return self.start + int(fields[_NUMBER])

    def leader_epochs(
        self, first: int, count: int, *, from_sequence: int
    ) -> Iterator[tuple[tuple[bytes, int], int]]:
        """Yield topic id and number, and the leader epoch, of each slice in some of the rows.

        ``first`` and ``count`` name the rows; those of objects below ``from_sequence`` are left
        out.
        """
        least = from_sequence - self.start
        for fields in self.rows.fields(first, count):
            if fields[_NUMBER] >= least:
                yield (fields[_TOPIC_ID], fields[_PARTITION]), fields[_LEADER_EPOCH]


class Covered:
    """The objects of a chain that indexes have."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def add(self, start: int, end: int) -> None:
        """Add the objects ``[start, end)``."""
        apart: list[tuple[int, int]] = []
        for first, last in self._ranges:  # Indexes follow each other, so few are left.
            if first <= end and start <= last:
                start, end = min(first, start), max(last, end)
            else:
                apart.append((first, last))
        self._ranges = [*apart, (start, end)]

    def has_any(self, start: int, end: int) -> bool:
        """Return whether an index has any of the objects ``[start, end)``."""
        return any(first < end and start < last for first, last in self._ranges)

    def has(self, sequence: int) -> bool:
        """Return whether an index has the object."""
        return any(start <= sequence < end for start, end in self._ranges)


def rows_of(footer: WalFooter) -> bytes:
    """Return the packed rows of an object for ``build_index``."""
    header = footer.header
    return index_rows(header.chain, header.sequence, footer.slices, footer.references)


def index_rows(
    chain: ChainName,
    sequence: int,
    slices: Iterable[SliceRow],
    references: Iterable[ReferenceRow],
) -> bytes:
    """Return the packed rows of an object with these; a gateway's slices have none."""
    rows = [
        ReferenceRow(
            topic_id=row.topic_id,
            chain_id=chain.chain_id.bytes,
            broker_id=chain.broker_id,
            partition=row.partition,
            leader_epoch=row.leader_epoch,
            batch_count=0,
            sequence=sequence,
            base_offset=row.base_offset,
            end_offset=row.end_offset,
            max_timestamp_ms=row.max_timestamp_ms,
            position=row.position,
            size_bytes=row.size_bytes,
            crc32c=row.crc32c,
        )
        for row in slices
        if not row.is_foreign
    ]
    rows += [row._replace(batch_count=0, reserved=0) for row in references]
    return pack_rows(WalSection.REFERENCES, rows)


def build_index(
    chain: ChainName,
    cluster_id: str,
    objects: list[tuple[int, bytes]],
    *,
    created_ms: int,
    snapshots: Sequence[Snapshot] = (),
) -> BuiltObject:
    """Return the index of the objects, which follow each other: sequence and packed rows of each.

    All of them must be committed, and all records below the offset of a snapshot.
    """
    start, end = objects[0][0], objects[-1][0] + 1
    if [sequence for sequence, _ in objects] != list(range(start, end)):
        raise ValueError(f"objects [{start}, {end}) of {chain} are not all there")
    name = ObjectName(cluster_id, chain, end, start, 0, created_ms)
    rows = (
        row._replace(reserved=sequence - start)
        for sequence, packed in objects
        for row in RowTable(ReferenceRow, WalSection.REFERENCES, memoryview(packed))
    )
    return build_checkpoint(name, untiered=rows, snapshots=snapshots, epochs=(), marks=())


def parse_index(data: Buffer, name: WalKey, *, key: str) -> ChainIndex | None:
    """Return the index in the bytes of its object, ``None`` if it is a checkpoint of another kind.

    Raises ``CorruptObject`` with ``key``, also if it is that of another chain.
    """
    footer = parse_object(data, key=key)
    header = footer.header
    check_key(header, name, key=key)
    start, end = header.committed_end, header.sequence
    if header.kind is not WalKind.CHECKPOINT or start == end:
        return None
    before = 0
    for fields in footer.references.fields(0, len(footer.references)):
        number = fields[_NUMBER]
        if not before <= number < end - start:
            raise CorruptObject(key, f"it has a slice of object {start + number} of {end}")
        before = number
    view = memoryview(data)
    snapshots = tuple(
        Snapshot(
            UUID(bytes=row.topic_id),
            row.partition,
            row.end_offset,
            bytes(view[row.position : row.position + row.size_bytes]),
            row.epoch_end - 1,
        )
        for row in footer.snapshots
    )
    return ChainIndex(header.chain, start, end, footer.references, snapshots)
