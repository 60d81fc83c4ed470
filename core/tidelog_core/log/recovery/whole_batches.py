"""Finds the whole batches of a segment file that may be damaged.

A batch is whole if its CRC is right. The CRC does not cover the base offset, which has to fit
as well:

- A batch right behind a whole one fits if it continues the offsets. A higher base offset is
  taken for a gap left by compaction, unless the next batch begins before this one would end:
  then the base offset is wrong.
- Behind damaged batches, the next one is searched at the ends that their headers give, and
  at the positions in the offset index. Its base offset must agree with the damaged batch, with
  the next batch, or with the end of the file.
- No gap spans ``last_gap_max``, the end of the flushed bytes: a batch ended there. So a base
  offset above it is not believed behind damage below it, even if other headers agree.

Gaps need no other proof: a replica that fetched from a compacted leader has them too.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter
from pathlib import Path

from tidelog_core.errors import CorruptRecordBatch, UnsupportedMagic
from tidelog_core.log.paths import OFFSET_INDEX_SUFFIX
from tidelog_core.records.batch import HEADER_SIZE, BatchHeader, check_crc, parse_header

_INDEX_ENTRY = struct.Struct(">ii")  # relative offset, position


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets ``[start, end)``."""

    start: int
    end: int

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Whole batches that follow one another in a file."""

    position: int
    size_bytes: int


@dataclass(slots=True)
class FileContent:
    """The readable and lost parts of a file."""

    base_offset: int
    size_bytes: int
    stretches: list[Stretch]
    intact: list[OffsetRange]
    lost: list[OffsetRange]
    problem: str | None = None  # the first damage
    problem_offset: int = 0  # where in the log that is

    @property
    def end_offset(self) -> int:
        """The end of the last whole batch, exclusive."""
        return self.intact[-1].end if self.intact else self.base_offset


def read_whole_batches(
    path: Path, base_offset: int, *, limit: int, last_gap_max: int
) -> FileContent:
    """Read every batch of the file that can be found. Raises ``OSError``.

    All offsets are below ``limit``. A batch behind a gap that begins below ``last_gap_max`` must
    end there or below, or begin there; a last batch behind any gap must end there or below. If
    not, its base offset is taken for damaged.
    """
    found = FileContent(base_offset, path.stat().st_size, [], [], [])
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        reader = _BatchReader(descriptor, found.size_bytes, limit, last_gap_max)
        position, next_offset = 0, base_offset
        while position < found.size_bytes:
            header = reader.whole_batch(position, next_offset)
            if header is None or not reader.continues(header, position, next_offset):
                if found.problem is None:
                    found.problem = f"is damaged at position {position}"
                    found.problem_offset = next_offset
                resumed = reader.resume(path, position, next_offset)
                if resumed is None:
                    break
                position, header = resumed
                found.lost.append(OffsetRange(next_offset, header.base_offset))
            found.stretches.append(Stretch(position, header.size_bytes))
            found.intact.append(OffsetRange(header.base_offset, header.next_offset))
            position += header.size_bytes
            next_offset = header.next_offset
    finally:
        os.close(descriptor)
    return found


class _BatchReader:
    """Reads batches of one file that may be damaged."""

    def __init__(self, descriptor: int, size_bytes: int, limit: int, last_gap_max: int) -> None:
        self._descriptor = descriptor
        self._size_bytes = size_bytes
        self._limit = limit
        self._last_gap_max = last_gap_max

    def header_at(self, position: int) -> BatchHeader | None:
        """Return the bytes at the position as a batch header, ``None`` if they cannot be one."""
        try:
            return parse_header(os.pread(self._descriptor, HEADER_SIZE, position))
        except (CorruptRecordBatch, UnsupportedMagic, OSError):
            return None

    def whole_batch(self, position: int, next_offset: int) -> BatchHeader | None:
        """Return the header of the batch at the position if its CRC is right.

        Its offsets are in ``[next_offset, limit)``.
        """
        header = self.header_at(position)
        if header is None:
            return None
        if position + header.size_bytes > self._size_bytes or header.last_offset_delta < 0:
            return None
        if header.base_offset < next_offset or header.next_offset > self._limit:
            return None
        try:
            check_crc(os.pread(self._descriptor, header.size_bytes, position), 0, header)
        except (CorruptRecordBatch, OSError):
            return None
        return header

    def continues(self, header: BatchHeader, position: int, next_offset: int) -> bool:
        """Return whether a whole batch fits directly behind another, perhaps after a gap."""
        if header.base_offset == next_offset:
            return True
        if self._is_beyond_flushed_gap(header, next_offset):
            return False
        following = self.header_at(position + header.size_bytes)
        # The lowest base offset that the next batch can have, whether or not there is a gap here.
        earliest = next_offset + header.last_offset_delta + 1
        if following is None or following.base_offset < earliest:
            return header.next_offset <= self._last_gap_max
        return following.base_offset >= header.next_offset

    def resume(
        self, path: Path, damaged_at: int, next_offset: int
    ) -> tuple[int, BatchHeader] | None:
        """Return position and header of the next whole batch behind a damaged one, or ``None``."""
        by_headers = self._by_headers(damaged_at)
        by_index = ((at, None) for at in _index_positions(path) if at > damaged_at)
        for position, claimed_offset in merge(by_headers, by_index, key=itemgetter(0)):
            header = self.whole_batch(position, next_offset + 1)
            if header is None or self._is_beyond_flushed_gap(header, next_offset):
                continue
            is_claimed = header.base_offset == claimed_offset
            if is_claimed or self.continues(header, position, next_offset):
                return position, header
        return None

    def _is_beyond_flushed_gap(self, header: BatchHeader, next_offset: int) -> bool:
        """Return whether the gap before the batch spans ``last_gap_max``."""
        is_across = next_offset < self._last_gap_max < header.next_offset
        return is_across and header.base_offset != self._last_gap_max

    def _by_headers(self, position: int) -> Iterator[tuple[int, int | None]]:
        """Yield the batch positions and offsets that follow from a damaged header."""
        while (header := self.header_at(position)) is not None:
            position += header.size_bytes
            yield position, header.next_offset


def _index_positions(path: Path) -> Iterator[int]:
    """Yield the positions of the batches that the offset index names."""
    try:
        index = path.with_suffix(OFFSET_INDEX_SUFFIX).read_bytes()
    except OSError:
        return
    whole = len(index) // _INDEX_ENTRY.size * _INDEX_ENTRY.size
    yield from (position for _, position in _INDEX_ENTRY.iter_unpack(index[:whole]))
