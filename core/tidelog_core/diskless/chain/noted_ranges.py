"""Ranges of local logs that wait to be put into a chain's next object; not their bytes."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from tidelog_core.diskless.wal.build import ForeignSlice
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.rows import EpochRow

# Counted for a reference and for each of its batches, so that they are bounded like records.
REFERENCE_BYTES, REFERENCE_BATCH_BYTES = 192, 64


class NotedRange(NamedTuple):
    """Offsets ``[base_offset, end_offset)`` of a local log, all of one leader epoch."""

    partition: PartitionName
    leader_epoch: int
    base_offset: int
    end_offset: int
    size_bytes: int


class ForeignRange(NamedTuple):
    """A gateway's slice, named by the gateway's own number for it."""

    partition: PartitionName
    number: int
    size_bytes: int


class ObjectContent(NamedTuple):
    """The ranges and rows that one object is built from."""

    ranges: tuple[NotedRange, ...]
    foreign: tuple[ForeignRange, ...]
    references: tuple[ForeignSlice, ...]
    epochs: tuple[EpochRow, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes that are counted for it: those of the body, and some for each reference."""
        parts: list[_Part] = [*self.ranges, *self.foreign, *self.references]
        return sum(map(_size_of, parts))

    def ends(self) -> dict[PartitionName, int]:
        """Return the offset up to which the object has each partition."""
        ends = {part.partition: part.end_offset for part in self.ranges}
        for reference in self.references:
            name = partition_of(reference)
            end_offset = reference.base_offset + reference.row.end_offset
            ends[name] = max(end_offset, ends.get(name, 0))
        return ends


_Part = NotedRange | ForeignRange | ForeignSlice


class NotedRanges:
    """Collects ranges until objects are built from them."""

    def __init__(self, object_bytes_max: int) -> None:
        """No object gets more than so many bytes, unless a range of more was noted at once."""
        self._object_bytes_max = object_bytes_max
        # By partition, ``None`` for foreign ones; those that have waited longest first.
        self._parts: dict[PartitionName | None, deque[_Part]] = {}
        self._ends: dict[PartitionName, int] = {}  # where what is noted next begins
        self._epochs: list[EpochRow] = []
        self.size_bytes = 0
        self.first_ms: float | None = None  # when the oldest of them was noted, or before
        self.first_reference_ms: float | None = None  # the same of the references

    def begin(self, partition: PartitionName, offset: int) -> None:
        """Note the partition from this offset on, without a gap between objects either."""
        self._ends[partition] = offset

    def add(self, noted: NotedRange, now_ms: float) -> None:
        """Note a range that follows the last one of its partition, or a reference there."""
        self._follow(noted.partition, noted.base_offset, noted.end_offset)
        parts = self._parts.setdefault(noted.partition, deque())
        last = parts[-1] if parts else None
        if isinstance(last, NotedRange) and self._is_one_range(last, noted):
            parts[-1] = last._replace(
                end_offset=noted.end_offset, size_bytes=last.size_bytes + noted.size_bytes
            )
        else:
            parts.append(noted)
        self._count(noted.size_bytes, now_ms)

    def add_foreign(self, foreign: ForeignRange, now_ms: float) -> None:
        """Note a slice that another node leads."""
        self._parts.setdefault(None, deque()).append(foreign)
        self._count(foreign.size_bytes, now_ms)

    def add_reference(self, reference: ForeignSlice, now_ms: float) -> None:
        """Note a reference to a slice in a gateway's chain."""
        end_offset = reference.base_offset + reference.row.end_offset
        name = partition_of(reference)
        self._follow(name, reference.base_offset, end_offset)
        self._parts.setdefault(name, deque()).append(reference)
        if self.first_reference_ms is None:
            self.first_reference_ms = now_ms
        self._count(_size_of(reference), now_ms)

    def add_epoch(self, row: EpochRow) -> None:
        """Note that a leader epoch begins; it goes with the next object, and needs none."""
        self._epochs.append(row)

    def has(self, partition: PartitionName) -> bool:
        """Return whether something of the partition waits."""
        return partition in self._parts

    def take(self) -> ObjectContent:
        """Return the ranges that fit into an object, partitions in order. The rest waits."""
        taken = self._take_parts()
        self.size_bytes -= sum(map(_size_of, taken))
        if not self._parts:
            self.first_ms = self.first_reference_ms = None
        ranges = [part for part in taken if isinstance(part, NotedRange)]
        content = ObjectContent(
            tuple(sorted(ranges, key=lambda part: part.partition)),
            tuple(part for part in taken if isinstance(part, ForeignRange)),
            tuple(part for part in taken if isinstance(part, ForeignSlice)),
            tuple(self._epochs),
        )
        self._epochs = []
        return content

    def _take_parts(self) -> list[_Part]:
        taken: list[_Part] = []
        left = self._object_bytes_max
        for name, parts in list(self._parts.items()):
            taken_before = len(taken)
            while parts and (not taken or _size_of(parts[0]) <= left):
                left -= _size_of(parts[0])
                taken.append(parts.popleft())
            if parts:
                if len(taken) > taken_before:  # Others are first in the next object.
                    self._parts[name] = self._parts.pop(name)
                break
            del self._parts[name]
        return taken

    def _is_one_range(self, last: NotedRange, noted: NotedRange) -> bool:
        size_bytes = last.size_bytes + noted.size_bytes
        return size_bytes <= self._object_bytes_max and (
            (last.leader_epoch, last.end_offset) == (noted.leader_epoch, noted.base_offset)
        )

    def _follow(self, partition: PartitionName, base_offset: int, end_offset: int) -> None:
        noted_end = self._ends.get(partition, base_offset)
        if base_offset != noted_end or end_offset <= base_offset:
            raise ValueError(
                f"[{base_offset}, {end_offset}) of {partition} does not follow {noted_end}"
            )
        self._ends[partition] = end_offset

    def _count(self, size_bytes: int, now_ms: float) -> None:
        self.size_bytes += size_bytes
        if self.first_ms is None:
            self.first_ms = now_ms


def partition_of(reference: ForeignSlice) -> PartitionName:
    """Return the partition that the reference is of."""
    return PartitionName.of_row(reference.row)


def _size_of(part: _Part) -> int:
    """Return the bytes that are counted for it."""
    if isinstance(part, ForeignSlice):
        return REFERENCE_BYTES + REFERENCE_BATCH_BYTES * len(part.batches)
    return part.size_bytes
