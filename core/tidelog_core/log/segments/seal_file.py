"""The file ``sealed-segments``: size, extent and CRCs of a log's sealed segments.

The file is a run of checkpoints (``checkpoint``), with one seal record a row. A full write
leaves one checkpoint. Each later flush appends one more, with the segments sealed since. A
reader stops at the first damaged checkpoint and uses those before it. A crash tears only what
an unfinished flush appended, and the next write replaces that.

A flush appends if every new row is about a segment behind all rows of the file, so a roll costs
the same with many segments as with few. Rows of segments removed at the front stay until they
outnumber the rows of existing segments. After any other change the file is written in full, so
that no row is about another segment at the same place, except while one segment replaces
others (``cleaned_segments``).
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
    read_file,
    write_file,
    write_fully,
)
from tidelog_core.log.segments.segment_indexes import SealRecord

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
    """The rows in one log's file, and the rows to be written. For the log's thread."""

    __slots__ = ("_added", "_is_changed", "_is_whole", "_last_base_offset", "_path", "_row_count")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._row_count = 0  # in the file, once the write that was begun has run
        self._last_base_offset = -1  # of the last row, written or not
        self._added: list[SealRecord] = []  # the rows for the next append
        self._is_whole = False  # whether rows may be appended to the file
        self._is_changed = False  # whether the file has a row too many, or a wrong one

    def opened(self, seals: Sequence[SealRecord], *, is_whole: bool) -> None:
        """Take the file's rows; ``is_whole`` if there is nothing else in it."""
        bases = [seal.base_offset for seal in seals]
        self._row_count = len(bases)
        self._last_base_offset = max(bases, default=-1)
        # A crash in a swap leaves two rows of one segment. One of them is now wrong.
        self._is_whole = is_whole and all(one < after for one, after in pairwise(bases))

    @property
    def is_dirty(self) -> bool:
        """Whether the file lacks a change."""
        return self._is_changed or bool(self._added)

    def add(self, seal: SealRecord) -> None:
        """Note that a segment was sealed, or sealed again."""
        if seal.base_offset <= self._last_base_offset:
            self.require_rewrite()
        else:
            self._added.append(seal)
            self._last_base_offset = seal.base_offset

    def require_rewrite(self) -> None:
        """Note that rows are outdated: the next write is of the whole file."""
        self._is_changed, self._is_whole = True, False

    def begin_write(self, segment_count: int, seals: Callable[[], list[SealRecord]]) -> SealWrite:
        """Return the write that brings the file up to date, for a log of so many segments."""
        row_count = self._row_count + len(self._added)
        if self._is_whole and row_count <= max(2 * segment_count, STALE_ROWS_MIN):
            write = SealWrite(self._path, self._added, is_append=True)
            self._row_count = row_count
        else:
            write = SealWrite(self._path, seals(), is_append=False)
            self.opened(write.rows, is_whole=True)
        self._added, self._is_changed = [], False
        return write

    def give_up(self, write: SealWrite) -> None:
        """Leave a write that was not or may not be finished to the next one."""
        if write.is_append and not write.has_begun:
            self._row_count -= len(write.rows)
            self._added[:0] = write.rows
        elif not write.is_done:
            self.require_rewrite()  # The content of the file is unknown.


def read_seals(path: Path) -> tuple[list[SealRecord], bool]:
    """Return the file's rows, and whether rows may be appended: there is nothing else in it."""
    try:
        rows, is_whole = decode_leading_rows(read_file(path))
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
