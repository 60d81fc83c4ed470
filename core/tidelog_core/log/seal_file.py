"""``sealed-segments``, which vouches for a log's sealed segments: written whole, or appended to.

Layout: checkpoints (``checkpoint``), one behind the other, with a seal record a row. The first one
was written in the place of a whole file; every other one was appended by a flush, and has the
segments that were sealed since the one before it. A reader believes the checkpoints up to the
first that is not right. What a crash has torn off at the end was of a flush that has not ended,
and the next write replaces it. Where the first one is not right, nothing is known.

Rows are appended while they only add to the file, each of a segment behind all that it has: a
roll costs as much beside many segments as beside few. Rows of segments that were removed at the
front stay, since nobody asks for them, until they are more than those of segments that are
there. After any other change the file is written whole, so that a row is never about another
segment at the same place, except while one segment replaces others (``cleaned``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from tidelog_core.log.checkpoint import (
    CorruptCheckpoint,
    decode_leading_rows,
    encode_rows,
    write_file,
    write_fully,
)
from tidelog_core.log.segment_indexes import SealRecord

STALE_ROWS_MIN = 64  # rows without a segment that are left in a file of few segments


class SealWrite:
    """One write of the file: made by the log's thread and carried out on any."""

    def __init__(self, path: Path, rows: Sequence[SealRecord], *, is_append: bool) -> None:
        self.rows = rows
        self.is_append = is_append
        self.has_begun = False
        self.is_done = False
        self._path = path

    def run(self) -> None:
        """Write the rows; their bytes are durable then, the file's name is not. Blocks.

        Raises ``OSError``; an append may have left a part of its bytes.
        """
        self.has_begun = True
        content = encode_rows(self.rows)
        if self.is_append:
            _append(self._path, content)
        else:
            write_file(self._path, content, is_durable=False)
        self.is_done = True


class SealFile:
    """What one log's file has, and what it lacks. For the log's thread."""

    __slots__ = ("_added", "_is_changed", "_is_whole", "_last_base_offset", "_path", "_row_count")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._row_count = 0  # in the file, once what was begun is written
        self._last_base_offset = -1  # of the last row, be it in the file yet or not
        self._added: list[SealRecord] = []  # what the next append has to add
        self._is_whole = False  # whether rows may be appended to the file
        self._is_changed = False  # whether the file has a row too many, or a wrong one

    def opened(self, seals: Sequence[SealRecord], *, is_whole: bool) -> None:
        """Take note of the file's rows, and whether there is nothing else in it."""
        bases = [seal.base_offset for seal in seals]
        self._row_count = len(bases)
        self._last_base_offset = max(bases, default=-1)
        # A crash in a swap leaves two rows of one segment, of which one is wrong now.
        self._is_whole = is_whole and all(one < after for one, after in pairwise(bases))

    @property
    def is_dirty(self) -> bool:
        """Whether the file lacks a change."""
        return self._is_changed or bool(self._added)

    def add(self, seal: SealRecord) -> None:
        """Note that a segment was sealed, or sealed again."""
        if seal.base_offset <= self._last_base_offset:
            self.change()
        else:
            self._added.append(seal)
            self._last_base_offset = seal.base_offset

    def change(self) -> None:
        """Note that rows are no longer right: the next write is of the whole file."""
        self._is_changed, self._is_whole = True, False

    def begin_write(self, segment_count: int, seals: Callable[[], list[SealRecord]]) -> SealWrite:
        """Return what brings the file up to date with the log, which has so many segments."""
        row_count = self._row_count + len(self._added)
        if self._is_whole and row_count <= max(2 * segment_count, STALE_ROWS_MIN):
            write = SealWrite(self._path, self._added, is_append=True)
        else:
            write = SealWrite(self._path, seals(), is_append=False)
            self.opened(write.rows, is_whole=True)
        self._row_count = row_count if write.is_append else len(write.rows)
        self._added, self._is_changed = [], False
        return write

    def give_up(self, write: SealWrite) -> None:
        """Leave a write that nobody carries out any more to the next one."""
        if write.is_append and not write.has_begun:
            self._row_count -= len(write.rows)
            self._added[:0] = write.rows
        elif not write.is_done:
            self.change()  # Nobody knows what is in the file.


def read_seals(path: Path) -> tuple[list[SealRecord], bool]:
    """Return the file's rows, and whether rows may be appended: there is nothing else in it."""
    try:
        rows, is_whole = decode_leading_rows(path.read_bytes())
    except (FileNotFoundError, CorruptCheckpoint):
        return [], False
    return [SealRecord(*row) for row in rows], is_whole


def _append(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        write_fully(descriptor, content, os.fstat(descriptor).st_size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
