"""What waits to be put into a chain's next object: ranges of local logs, not their bytes."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from tidelog_core.diskless.epoch_chains import PartitionName
from tidelog_core.diskless.wal_build import ForeignSlice
from tidelog_core.diskless.wal_rows import EpochRow, MarkRow

REFERENCE_BYTES = 256  # counted for one, so that they are bounded like records


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
    """What the next object is built from."""

    ranges: tuple[NotedRange, ...]
    foreign: tuple[ForeignRange, ...]
    references: tuple[ForeignSlice, ...]
    epochs: tuple[EpochRow, ...]
    marks: tuple[MarkRow, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes that are counted for it: those of the body, and some for each reference."""
        own = sum(part.size_bytes for part in self.ranges)
        foreign = sum(part.size_bytes for part in self.foreign)
        return own + foreign + REFERENCE_BYTES * len(self.references)

    def ends(self) -> dict[PartitionName, int]:
        """Return the offset up to which the object has each partition."""
        ends = {part.partition: part.end_offset for part in self.ranges}
        for reference in self.references:
            name = _partition_of(reference)
            end_offset = reference.base_offset + reference.row.end_offset
            ends[name] = max(end_offset, ends.get(name, 0))
        return ends


class NotedRanges:
    """Collects ranges until an object is built from them."""

    def __init__(self) -> None:
        self._ranges: dict[PartitionName, list[NotedRange]] = {}
        self._ends: dict[PartitionName, int] = {}  # of what waits
        self._foreign: list[ForeignRange] = []
        self._references: list[ForeignSlice] = []
        self._epochs: list[EpochRow] = []
        self._marks: dict[PartitionName, MarkRow] = {}
        self.size_bytes = 0
        self.first_ms: float | None = None  # when the oldest of them was noted

    def add(self, noted: NotedRange, now_ms: float) -> None:
        """Note a range that follows the last one of its partition, or a reference there."""
        self._follow(noted.partition, noted.base_offset, noted.end_offset)
        parts = self._ranges.setdefault(noted.partition, [])
        last = parts[-1] if parts else None
        if last is not None and (last.leader_epoch, last.end_offset) == noted[1:3]:
            parts[-1] = last._replace(
                end_offset=noted.end_offset, size_bytes=last.size_bytes + noted.size_bytes
            )
        else:
            parts.append(noted)
        self._count(noted.size_bytes, now_ms)

    def add_foreign(self, foreign: ForeignRange, now_ms: float) -> None:
        """Note a slice that another node leads."""
        self._foreign.append(foreign)
        self._count(foreign.size_bytes, now_ms)

    def add_reference(self, reference: ForeignSlice, now_ms: float) -> None:
        """Note a reference to a slice in a gateway's chain."""
        end_offset = reference.base_offset + reference.row.end_offset
        self._follow(_partition_of(reference), reference.base_offset, end_offset)
        self._references.append(reference)
        self._count(REFERENCE_BYTES, now_ms)

    def add_epoch(self, row: EpochRow) -> None:
        """Note that a leader epoch begins; it goes with the next object, and needs none."""
        self._epochs.append(row)

    def set_mark(self, row: MarkRow) -> None:
        """Note offsets that have moved; they go with the next object, and need none."""
        self._marks[PartitionName(UUID(bytes=row.topic_id), row.partition)] = row

    def has(self, partition: PartitionName) -> bool:
        """Return whether something of the partition waits."""
        return partition in self._ends

    def take(self) -> ObjectContent:
        """Return everything, partitions in order, and be empty."""
        content = ObjectContent(
            tuple(part for name in sorted(self._ranges) for part in self._ranges[name]),
            tuple(self._foreign),
            tuple(self._references),
            tuple(self._epochs),
            tuple(self._marks.values()),
        )
        self._ranges, self._ends, self._foreign, self._references = {}, {}, [], []
        self._epochs, self._marks = [], {}
        self.size_bytes, self.first_ms = 0, None
        return content

    def _follow(self, partition: PartitionName, base_offset: int, end_offset: int) -> None:
        waiting_end = self._ends.get(partition, base_offset)
        if base_offset != waiting_end or end_offset <= base_offset:
            raise ValueError(
                f"[{base_offset}, {end_offset}) of {partition} does not follow {waiting_end}"
            )
        self._ends[partition] = end_offset

    def _count(self, size_bytes: int, now_ms: float) -> None:
        self.size_bytes += size_bytes
        if self.first_ms is None:
            self.first_ms = now_ms


def _partition_of(reference: ForeignSlice) -> PartitionName:
    return PartitionName(UUID(bytes=reference.row.topic_id), reference.row.partition)
