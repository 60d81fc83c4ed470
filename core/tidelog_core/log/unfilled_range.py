"""A log that goes on at its end before it has the records in the middle.

    log start ≤ … tiered … ≤ unfilled start [ in neither tier nor log ) unfilled end = local start …

An heir of a diskless partition knows where its records end long before it has read them. So its log
begins at that end, takes new records, and the records before it are filled in later: into another
log in the folder ``filling``, which then gives its segments away. No file ever has a hole.

1. the file ``unfilled`` says ``[start, end)``, durably; then the log is truncated to its new start
2. the other log is filled up
3. its segments' files are moved, newest first; then the log's start is written, then ``unfilled``
   is removed (``pending_fill``)

While that file exists, records below the local start may be in no tier. A log that is opened with
it has been interrupted, and must be restarted at the end of the tier before it leads or follows.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from tidelog_core.log.checkpoint import (
    CorruptCheckpoint,
    encode_rows,
    read_checkpoint,
    sync_directory,
    sync_file,
    write_file_in,
)
from tidelog_core.log.paths import (
    FILLING_DIRECTORY,
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    START_OFFSET_FILE,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    UNFILLED_FILE,
    parse_segment_name,
    segment_path,
)
from tidelog_core.log.producers.producer_snapshots import snapshot_path
from tidelog_core.log.segments.log_segments import LogSegments, remove_segment_files
from tidelog_core.log.segments.segment import LogSegment


class Unfilled(NamedTuple):
    """The offsets ``[start, end)`` that are neither in the tier nor in the log."""

    start: int
    end: int


def read_unfilled(directory: Path) -> Unfilled | None:
    """Return the file's range; for a damaged file, that all records are missing.

    Removes what was filled before the log was opened.
    """
    path = directory / UNFILLED_FILE
    if not path.exists():
        return None
    clear_filling(directory)
    with suppress(CorruptCheckpoint, IndexError, ValueError):
        rows = read_checkpoint(path)
        if rows:
            start, end = rows[0]
            return Unfilled(start, end)
    return Unfilled(0, 2**63 - 1)


class UnfilledMark:
    """The file with a log's unfilled range, while it is written. Made by the log's thread.

    It is written through a descriptor of the folder: another log may get the name if this one is
    deleted. If the log did not begin at this range, ``close`` removes the file: the next opening
    would throw the log away. A log that ends closes its mark: it may not remove that of a later log
    over the same files.
    """

    def __init__(self, directory: Path, unfilled: Unfilled) -> None:
        """Raises ``OSError``."""
        self.unfilled = unfilled
        self.is_taken = False  # the log begins at the range
        self._lock = Lock()
        self._may_be_there = False
        self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def run(self) -> None:
        """Make the file durable. For any thread. Raises ``OSError``, also if it is closed."""
        with self._lock:
            self._may_be_there = self._directory >= 0
            write_file_in(self._directory, UNFILLED_FILE, encode_rows([list(self.unfilled)]))

    def close(self) -> None:
        """Remove the file, durably, unless it is taken. Waits for ``run``."""
        with self._lock:
            if self._directory < 0:
                return
            if self._may_be_there and not self.is_taken:
                with suppress(OSError):
                    os.unlink(UNFILLED_FILE, dir_fd=self._directory)
                    os.fsync(self._directory)
            os.close(self._directory)
            self._directory = -1


def remove_unfilled(directory: Path) -> None:
    """Remove the file, durably, and the fill log. Raises ``OSError``.

    If the file came back after a crash, the next opening would throw a whole log away.
    """
    clear_filling(directory)
    (directory / UNFILLED_FILE).unlink(missing_ok=True)
    sync_directory(directory)


def end_filling(directory: Path, start_offset: int) -> None:
    """Make a filled log's start, producers and leader epochs durable; then remove the mark.

    Its batches need not be durable: those that a power cut damages are truncated when the log is
    opened, and read again. The producers and leader epochs before its start cannot be read again.
    Raises ``OSError``.
    """
    for path in (
        snapshot_path(directory, start_offset),
        directory / LEADER_EPOCH_FILE,
        directory / START_OFFSET_FILE,
    ):
        with suppress(FileNotFoundError):
            sync_file(path)
    remove_unfilled(directory)


def clear_filling(directory: Path) -> None:
    """Remove the fill log's folder. Raises ``OSError``."""
    with suppress(FileNotFoundError):
        shutil.rmtree(directory / FILLING_DIRECTORY)


def remove_moved(directory: Path, start_offset: int) -> None:
    """Remove the files before a log's first segment: a fill that failed had moved them.

    The next fill may roll at other offsets. Raises ``OSError``.
    """
    for name in os.listdir(directory):  # noqa: PTH208 - names are all that is needed
        parsed = parse_segment_name(name)
        if parsed is not None and parsed[0] < start_offset:
            remove_segment_files(directory, parsed[0])
            segment_path(directory, parsed[0], SNAPSHOT_SUFFIX).unlink(missing_ok=True)


def move_segments(source: LogSegments, target: LogSegments) -> list[LogSegment]:
    """Move the sealed segments' files; return their segments in the target, oldest first.

    The newest is moved first, so what is in the target's directory has no gap at any time. Raises
    ``OSError``.
    """
    moved: list[LogSegment] = []
    for one in reversed(source.all[:-1]):
        seal = one.seal
        assert seal is not None, "a segment is sealed by the roll behind it"
        one.close()
        # The records come last: files without them are removed when the log is opened.
        for suffix in (
            SNAPSHOT_SUFFIX,
            OFFSET_INDEX_SUFFIX,
            TIME_INDEX_SUFFIX,
            TXN_INDEX_SUFFIX,
            LOG_SUFFIX,
        ):
            path = segment_path(source.directory, one.base_offset, suffix)
            if suffix == LOG_SUFFIX or path.exists():
                path.replace(segment_path(target.directory, one.base_offset, suffix))
        segment = target.new_segment(one.base_offset)
        segment.created_ms = one.created_ms
        segment.adopt(seal)
        moved.append(segment)
    sync_directory(target.directory)
    return moved[::-1]
