"""Compares bytes of a log's files with the CRCs of a chain's slices, many in one task."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from crc32c import crc32c

from tidelog_node.diskless.recovery.chain_slices import StoredSlice

COMPARED_SLICES_MAX = 1_000
COMPARED_BYTES_MAX = 8 << 20  # unless a slice is larger
READ_BYTES = 1 << 20


def run_of(slices: Sequence[StoredSlice], first: int, end_offset: int) -> list[StoredSlice]:
    """Return the consecutive slices from index ``first`` on that are compared in one task.

    A task for each would cost more than comparing its bytes.
    """
    run = [slices[first]]
    size_bytes = slices[first].size_bytes
    for one in slices[first + 1 : first + COMPARED_SLICES_MAX]:
        size_bytes += one.size_bytes
        follows = one.base_offset == run[-1].end_offset and one.end_offset <= end_offset
        if one.is_reference or not follows or size_bytes > COMPARED_BYTES_MAX:
            break
        run.append(one)
    return run


def count_equal(ranges: Sequence[tuple[Path, int, int]], run: Sequence[StoredSlice]) -> int:
    """Return how many slices, from the first on, match the ranges' bytes. For any thread."""
    with _RangeBytes(ranges) as bytes_left:
        for number, one in enumerate(run):
            if bytes_left.crc_of_next(one.size_bytes) != one.crc32c:
                return number
    return len(run)


class _RangeBytes:
    """The bytes of ranges of files, one after the other. For one thread."""

    def __init__(self, ranges: Sequence[tuple[Path, int, int]]) -> None:
        self._left = deque(ranges)
        self._file: BinaryIO | None = None

    def __enter__(self) -> _RangeBytes:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_file()

    def crc_of_next(self, size_bytes: int) -> int | None:
        """Return the CRC of the next bytes, ``None`` if there are not so many."""
        crc = 0
        while size_bytes:
            some = self._read(min(size_bytes, READ_BYTES))
            if not some:
                return None
            crc = crc32c(some, crc)
            size_bytes -= len(some)
        return crc

    def _read(self, size_bytes: int) -> bytes:
        while self._left:
            path, start, end = self._left[0]
            if self._file is None:
                self._file = path.open("rb")
                self._file.seek(start)
            some = self._file.read(min(size_bytes, end - start))
            if some:
                self._left[0] = path, start + len(some), end
                return some
            if start < end:
                raise OSError("the segment file is shorter than its log says")
            self._end_file()
            self._left.popleft()
        return b""

    def _end_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
