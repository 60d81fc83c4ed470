"""Putting a compacted segment into the place of those that it was made from.

Compaction writes the new segment, with its index files, into the directory ``cleaned``,
and fsyncs it there. Then, with the log standing still:

    1. ``sealed-segments`` vouches for the new segment beside the old ones, durably
    2. ``cleaned/<base>.log`` becomes ``<base>.log.<end>.swap``; the directory is fsynced
    3. the files of the old segments go, the new index files come
    4. the swap file becomes ``<base>.log``; the directory is fsynced

A crash before 2 is durable leaves the old segments, and the next open throws ``cleaned``
away. After it, the next open does 3 and 4 again: everything in ``[base, end)`` but the
swap file is old. Only 1 and 2 need space on the disk, and until then nothing has changed.

Of several groups of one compaction, some may be replaced and others not: what went from
one group is still told by a newer record in another, replaced or not.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidelog_core.errors import ErrorCode, TidelogError
from tidelog_core.log.checkpoint import sync_directory, write_checkpoint
from tidelog_core.log.local_log import LocalLog, remove_segment_files
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
from tidelog_core.log.producer_snapshots import snapshot_path
from tidelog_core.log.segment_indexes import SealRecord


class SegmentsChanged(TidelogError):
    """The segments that were compacted are not what the log has now; nothing was replaced."""

    code = ErrorCode.unknown_server_error


@dataclass(frozen=True, slots=True)
class SegmentToClean:
    """A sealed, flushed segment, as compaction looks at it."""

    base_offset: int
    end_offset: int  # exclusive: the next segment's base offset
    size_bytes: int
    index_entry_count: int  # of its offset index
    first_timestamp_ms: int  # of its first batch, -1 if it has none
    max_timestamp_ms: int  # -1 if no record has a timestamp


@dataclass(frozen=True, slots=True)
class CleanedSegment:
    """A segment in the directory ``cleaned``, and those that it was made from."""

    seal: SealRecord  # its end offset is that of the last one replaced
    replaced: Sequence[SegmentToClean]  # at least one; in order, without a gap


def cleaned_directory(directory: Path) -> Path:
    """Return where the compacted segments of a log are written."""
    return directory / CLEANED_DIRECTORY


def segments_to_clean(local: LocalLog, *, up_to: int, dirty_from: int) -> Iterator[SegmentToClean]:
    """Yield the sealed segments wholly below ``up_to``. Raises ``OSError``.

    First timestamps are told of those that reach above ``dirty_from`` only: they may have
    to be read.
    """
    for segment in local.segments[:-1]:
        if segment.end_offset > up_to:
            return
        first_timestamp_ms = None
        if segment.end_offset > dirty_from:
            first_timestamp_ms = local.first_timestamp_ms(segment)
        yield SegmentToClean(
            segment.base_offset,
            segment.end_offset,
            segment.size_bytes,
            segment.entry_count,
            -1 if first_timestamp_ms is None else first_timestamp_ms,
            segment.max_timestamp_ms,
        )


def find_replaced(local: LocalLog, cleaned: CleanedSegment) -> range:
    """Return the indexes of the segments to replace. Raises ``SegmentsChanged``."""
    seal = cleaned.seal
    first = local.floor_index(seal.base_offset)
    found = range(first, first + len(cleaned.replaced))
    present = [(s.base_offset, s.end_offset, s.size_bytes) for s in local.segments[:-1]]
    expected = [(s.base_offset, s.end_offset, s.size_bytes) for s in cleaned.replaced]
    if present[found.start : found.stop] != expected:
        raise SegmentsChanged(
            f"{local.partition} has other segments in [{seal.base_offset}, {seal.end_offset}) "
            f"than were compacted"
        )
    return found


def vouch_for(local: LocalLog, cleaned: CleanedSegment) -> None:
    """Do the first step. Raises ``OSError``; the log is as it was."""
    # What stands twice is told apart by what the file turns out to be.
    rows = [*local.seals(), cleaned.seal]
    write_checkpoint(local.directory / SEGMENT_FILE, rows)
    local.seals_are_dirty = True


def begin_swap(local: LocalLog, cleaned: CleanedSegment) -> None:
    """Do the second step. Raises ``OSError``; the log is as it was if no swap file is there."""
    directory, seal = local.directory, cleaned.seal
    source = segment_path(cleaned_directory(directory), seal.base_offset, LOG_SUFFIX)
    os.rename(source, swap_path(directory, seal.base_offset, seal.end_offset))  # noqa: PTH104
    sync_directory(directory)


def end_swap(local: LocalLog, cleaned: CleanedSegment, replaced: range) -> None:
    """Do the other steps. After an ``OSError`` only opening the log anew helps."""
    directory, seal = local.directory, cleaned.seal
    _finish(directory, seal.base_offset, seal.end_offset, [s.base_offset for s in cleaned.replaced])
    segment = local.new_segment(seal.base_offset)
    segment.adopt(seal)
    local.replace(replaced, segment)


def finish_swaps(directory: Path) -> None:
    """Finish the swaps that a crash has cut short, and remove what was not swapped in yet."""
    names = os.listdir(directory)  # noqa: PTH208 - names are all that is needed
    if CLEANED_DIRECTORY in names:
        shutil.rmtree(cleaned_directory(directory))
    swaps = [swapped for name in names if (swapped := parse_swap_name(name)) is not None]
    if swaps:
        base_offsets = {parsed[0] for name in names if (parsed := parse_segment_name(name))}
        for swapped in swaps:
            old = [offset for offset in base_offsets if swapped[0] <= offset < swapped[1]]
            _finish(directory, *swapped, sorted(old))


def _finish(directory: Path, base_offset: int, end_offset: int, old: Sequence[int]) -> None:
    for old_offset in old:
        if old_offset != base_offset:
            remove_segment_files(directory, old_offset)
            snapshot_path(directory, old_offset).unlink(missing_ok=True)
    for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
        index = segment_path(directory, base_offset, suffix)
        index.unlink(missing_ok=True)
        try:
            os.rename(cleaned_directory(directory) / index.name, index)  # noqa: PTH104
        except OSError as error:
            # Without aborted transactions there is none, after a crash there is no other:
            # what is not there is rebuilt.
            if error.errno != errno.ENOENT:
                raise
    if len(old) > 1:
        # An old segment that came back behind the new one would seem to be part of the log.
        sync_directory(directory)
    live = segment_path(directory, base_offset, LOG_SUFFIX)
    os.rename(swap_path(directory, base_offset, end_offset), live)  # noqa: PTH104
    sync_directory(directory)
