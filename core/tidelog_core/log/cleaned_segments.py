"""Replaces segments with the compacted segment that was made from them.

Compaction writes the new segment, with its index files, into the directory ``cleaned``,
and fsyncs it there. Then:

    1. ``sealed-segments`` gets a row for the new segment, next to those of the old ones, durably;
       ``cleaned/<base>.log`` becomes ``<base>.log.<end>.swap``; the directory is fsynced
    2. the new index files are renamed; in memory the new segment replaces the old ones
    3. the files of the other old segments are removed; the directory is fsynced
    4. the swap file becomes ``<base>.log``
    5. the directory is fsynced

    After a crash before 1 is durable, the old segments are used and the next open removes
    ``cleaned``. After a later crash, the next open repeats the other steps: every file in
    ``[base, end)`` except the swap file is old. Only step 1 needs space on the disk.

    Steps 1, 3 and 5 block on the disk, and run on any thread (``PendingSwap``). The log's own
    thread may read, append and roll at the same time: 1 and 3 use no file that the log has open or
    opens, and the replaced segments are sealed. Code that truncates or removes segments, writes
    ``sealed-segments`` (a flush), or closes or deletes the log first finishes the swap
    (``Cleaning.settle``). A swap file that outlived a truncation would restore truncated records.

    A compaction has several groups, and some may be replaced without the others. A record that was
    removed from one group is still superseded by a newer record in another group.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidelog_core.errors import ErrorCode, TidelogError
from tidelog_core.log.alternating_steps import AlternatingSteps
from tidelog_core.log.checkpoint import sync_directory, write_checkpoint
from tidelog_core.log.paths import (
    CLEANED_DIRECTORY,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEGMENT_FILE,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    parse_segment_name,
    parse_swap_name,
    segment_path,
    swap_path,
)
from tidelog_core.log.producers.producer_snapshots import snapshot_path
from tidelog_core.log.segments.log_segments import LogSegments, remove_segment_files
from tidelog_core.log.segments.segment_indexes import SealRecord


class SegmentsChanged(TidelogError):
    """The log's segments are no longer the compacted ones; nothing was replaced."""

    code = ErrorCode.unknown_server_error


@dataclass(frozen=True, slots=True)
class SegmentToClean:
    """A sealed, flushed segment that compaction may read."""

    base_offset: int
    end_offset: int  # exclusive: the next segment's base offset
    size_bytes: int
    index_entry_count: int  # of its offset index
    first_timestamp_ms: int  # of its first batch, -1 if it has none
    max_timestamp_ms: int  # -1 if no record has a timestamp


@dataclass(frozen=True, slots=True)
class CleanedSegment:
    """A segment in the directory ``cleaned``, and the segments that it was made from."""

    seal: SealRecord  # its end offset is that of the last one replaced
    replaced: Sequence[SegmentToClean]  # at least one; in order, without a gap


def cleaned_directory(directory: Path) -> Path:
    """Return the directory in which the compacted segments of a log are written."""
    return directory / CLEANED_DIRECTORY


def segments_to_clean(
    segments: LogSegments, *, up_to: int, dirty_from: int
) -> Iterator[SegmentToClean]:
    """Yield the sealed segments wholly below ``up_to``. Raises ``OSError``.

    Only segments that reach above ``dirty_from`` have a first timestamp, which may have to
    be read from the file.
    """
    for segment in segments.all[:-1]:
        if segment.end_offset > up_to:
            return
        first_timestamp_ms = None
        if segment.end_offset > dirty_from:
            first_timestamp_ms = segments.first_timestamp_ms(segment)
        yield SegmentToClean(
            segment.base_offset,
            segment.end_offset,
            segment.size_bytes,
            segment.entry_count,
            -1 if first_timestamp_ms is None else first_timestamp_ms,
            segment.max_timestamp_ms,
        )


def find_replaced(segments: LogSegments, cleaned: CleanedSegment) -> range:
    """Return the indexes of the segments to replace. Raises ``SegmentsChanged``."""
    seal = cleaned.seal
    first = segments.floor_index(seal.base_offset)
    found = range(first, first + len(cleaned.replaced))
    present = [(s.base_offset, s.end_offset, s.size_bytes) for s in segments.all[:-1]]
    expected = [(s.base_offset, s.end_offset, s.size_bytes) for s in cleaned.replaced]
    if present[found.start : found.stop] != expected:
        raise SegmentsChanged(
            f"{segments.partition} has other segments in [{seal.base_offset}, {seal.end_offset}) "
            f"than were compacted"
        )
    return found


class PendingSwap(AlternatingSteps):
    """The steps in which a compacted segment replaces others, durably. Made by the log's thread.

    If one of them fails after the swap has begun, only reopening the log helps.
    """

    def __init__(self, segments: LogSegments, cleaned: CleanedSegment) -> None:
        """Raises ``SegmentsChanged``."""
        super().__init__(self._begin, self._adopt, self._remove_old, self._name, self._end)
        self._replaced = find_replaced(segments, cleaned)
        self._segments = segments
        self._seal = cleaned.seal
        # Two rows may have one base offset. Size and end of the file decide which is right.
        self._rows = [*segments.seals(), cleaned.seal]
        self._old = [one.base_offset for one in cleaned.replaced]
        self._segment = segments.new_segment(cleaned.seal.base_offset)

    @property
    def has_begun(self) -> bool:
        """Whether the next open would finish it."""
        directory, base_offset = self._segments.directory, self._seal.base_offset
        return not segment_path(cleaned_directory(directory), base_offset, LOG_SUFFIX).exists()

    def _begin(self) -> None:
        directory, seal = self._segments.directory, self._seal
        write_checkpoint(directory / SEGMENT_FILE, self._rows)
        source = segment_path(cleaned_directory(directory), seal.base_offset, LOG_SUFFIX)
        os.rename(source, self._swap_file)  # noqa: PTH104
        sync_directory(directory)

    def _adopt(self) -> None:
        segments, segment = self._segments, self._segment
        move_indexes(segments.directory, self._seal.base_offset)
        segment.adopt(self._seal)
        segment.path = self._swap_file
        segments.replace(self._replaced, segment)

    def _remove_old(self) -> None:
        remove_replaced(self._segments.directory, self._seal.base_offset, self._old)

    def _name(self) -> None:
        live = segment_path(self._segments.directory, self._seal.base_offset, LOG_SUFFIX)
        os.rename(self._swap_file, live)  # noqa: PTH104
        self._segment.path = live

    def _end(self) -> None:
        sync_directory(self._segments.directory)

    @property
    def _swap_file(self) -> Path:
        return swap_path(self._segments.directory, self._seal.base_offset, self._seal.end_offset)


def finish_swaps(directory: Path) -> list[str]:
    """Finish interrupted swaps, and remove the compacted segments whose swap had not begun.

    Returns the names in the directory.
    """
    names = os.listdir(directory)  # noqa: PTH208 - names are all that is needed
    if CLEANED_DIRECTORY in names:
        shutil.rmtree(cleaned_directory(directory))
        names.remove(CLEANED_DIRECTORY)
    swaps = [swapped for name in names if (swapped := parse_swap_name(name)) is not None]
    if swaps:
        base_offsets = {parsed[0] for name in names if (parsed := parse_segment_name(name))}
        for swapped in swaps:
            old = [offset for offset in base_offsets if swapped[0] <= offset < swapped[1]]
            _finish(directory, *swapped, sorted(old))
        names = os.listdir(directory)  # noqa: PTH208
    return names


def _finish(directory: Path, base_offset: int, end_offset: int, old: Sequence[int]) -> None:
    move_indexes(directory, base_offset)
    remove_replaced(directory, base_offset, old)
    live = segment_path(directory, base_offset, LOG_SUFFIX)
    os.rename(swap_path(directory, base_offset, end_offset), live)  # noqa: PTH104
    sync_directory(directory)


def move_indexes(directory: Path, base_offset: int) -> None:
    """Replace the index files of the old segment at this offset with the new ones."""
    for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
        index = segment_path(directory, base_offset, suffix)
        index.unlink(missing_ok=True)
        try:
            os.rename(cleaned_directory(directory) / index.name, index)  # noqa: PTH104
        except OSError as error:
            # A segment without aborted transactions has no such file, and a crash may have lost it.
            # A missing index file is rebuilt.
            if error.errno != errno.ENOENT:
                raise


def remove_replaced(directory: Path, base_offset: int, old: Sequence[int]) -> None:
    """Remove the files of the old segments, except those with the names of the new one's."""
    for old_offset in old:
        if old_offset != base_offset:
            remove_segment_files(directory, old_offset)
            snapshot_path(directory, old_offset).unlink(missing_ok=True)
    if len(old) > 1:
        # After a crash, an old segment behind the new one would seem to be part of the log.
        sync_directory(directory)
