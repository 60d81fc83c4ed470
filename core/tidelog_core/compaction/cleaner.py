"""Compacts the segment files of one log: reads them twice, and writes others beside them.

First the uncompacted part, to learn the newest offset of every key; then everything from
the log's start, to leave out what is older. What is written goes to the directory
``cleaned`` and is fsynced there; putting it in place is the log's own affair
(``tidelog_core.log.cleaned``). Nothing here needs the log to be open, or in this process.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tidelog_core.compaction.offset_map import OffsetMap
from tidelog_core.compaction.rewrite import DeleteRule, LastBatch, Rewrite, last_batches
from tidelog_core.compaction.selection import SegmentLimits
from tidelog_core.compaction.transactions import CleanedTransactions
from tidelog_core.config import TopicConfig
from tidelog_core.errors import CorruptRecordBatch
from tidelog_core.log.batch_scan import ScannedBatch, scan_file
from tidelog_core.log.checkpoint import sync_file
from tidelog_core.log.cleaned import CleanedSegment, SegmentToClean, cleaned_directory
from tidelog_core.log.cleaning import CleaningSource
from tidelog_core.log.paths import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_path,
)
from tidelog_core.log.segment import LogSegment, NewBatch
from tidelog_core.log.segment_indexes import SealRecord, SegmentIndexes
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.records.batch import build_empty_batch, parse_header

WRITE_BYTES = 1024 * 1024  # what is gathered before it is written


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningTask:
    """Everything that compacting one log takes."""

    directory: Path
    segments: Sequence[SegmentToClean]  # all of the log up to some end, in order
    limits: SegmentLimits
    dirty_from: int
    aborted: Sequence[AbortedTransaction]
    last_batches: Mapping[int, LastBatch]
    deletes: DeleteRule | None
    map_bytes_max: int
    index_interval_bytes: int


def plan_cleaning(
    source: CleaningSource,
    config: TopicConfig,
    *,
    deletes: DeleteRule | None,
    map_bytes_max: int,
    apart_at: int = 0,
) -> CleaningTask:
    """Return what it takes to compact the segments of ``source``.

    Without ``deletes`` tombstones and markers stay. No segments become one across
    ``apart_at``.
    """
    return CleaningTask(
        directory=source.directory,
        segments=source.segments,
        limits=SegmentLimits.of(config, apart_at=apart_at),
        dirty_from=source.dirty_from,
        aborted=source.aborted,
        last_batches=last_batches(source.producers.items()),
        deletes=deletes,
        map_bytes_max=map_bytes_max,
        index_interval_bytes=config.index_interval_bytes,
    )


@dataclass(frozen=True, slots=True)
class CleanedGroup:
    """What became of one group; ``None`` where nothing of it had to go."""

    cleaned: CleanedSegment | None
    bytes_read: int
    bytes_written: int


def build_offset_map(task: CleaningTask, throttle: Callable[[int], None]) -> OffsetMap:
    """Read the uncompacted segments until they end or the map is full.

    ``throttle`` is told of bytes before they are read, and may block. Raises
    ``CorruptRecordBatch``, ``OSError``.
    """
    latest = OffsetMap(start_offset=task.dirty_from, size_bytes_max=task.map_bytes_max)
    transactions = CleanedTransactions(
        one for one in task.aborted if one.last_offset >= task.dirty_from
    )
    for segment in task.segments:
        if segment.end_offset <= task.dirty_from or latest.is_full:
            continue
        for buffer, at, _, header in _batches(task.directory, segment, throttle):
            latest.add(buffer, at, header, transactions)
            if latest.is_full:
                break
        latest.extend_to(segment.end_offset)
    return latest


def clean_groups(
    task: CleaningTask, latest: OffsetMap, throttle: Callable[[int], None]
) -> Iterator[CleanedGroup]:
    """Write what is left of the segments that begin below the map's end.

    Into one file goes what is left of as many as fit, so that no segment stays empty: a
    reader would have to ask for each of them. Raises ``CorruptRecordBatch``, ``OSError``;
    what was yielded before is whole.
    """
    target = cleaned_directory(task.directory)
    shutil.rmtree(target, ignore_errors=True)  # of a run that was ended half-way
    target.mkdir()
    rewrite = Rewrite(
        end_offset=latest.end_offset,
        keep=latest.keeps,
        transactions=CleanedTransactions(task.aborted),
        deletes=task.deletes,
        last_batches=task.last_batches,
    )
    left = deque(one for one in task.segments if one.base_offset < latest.end_offset)
    while left:
        yield _clean_group(task, left, rewrite, throttle)


def _clean_group(
    task: CleaningTask,
    segments: deque[SegmentToClean],
    rewrite: Rewrite,
    throttle: Callable[[int], None],
) -> CleanedGroup:
    """Take segments off the left and write what is left of them."""
    assert rewrite.transactions is not None
    writer = _SegmentWriter(task, segments[0].base_offset, throttle)
    group: list[SegmentToClean] = []
    is_same, last = True, None
    try:
        while segments and (not group or writer.has_room_for(segments[0])):
            segment = segments.popleft()
            is_same = is_same and not group
            group.append(segment)
            for buffer, at, _, header in _batches(task.directory, segment, throttle):
                last = header
                left = rewrite.batch(buffer, at, header)
                if left is None or left != buffer[at : at + header.size_bytes]:
                    is_same = False
                if left is not None:
                    writer.add(left)
        if writer.is_empty and last is not None:
            # A segment without a byte could not be told from one that was lost.
            writer.add(build_empty_batch(last))
        aborted = rewrite.transactions.take_kept()
        bytes_read = sum(segment.size_bytes for segment in group)
        if is_same:
            writer.discard()
            return CleanedGroup(None, bytes_read, 0)
        seal = writer.seal(group, aborted)
        return CleanedGroup(CleanedSegment(seal, tuple(group)), bytes_read, seal.size_bytes)
    except BaseException:
        writer.discard()
        raise


class _SegmentWriter:
    """Writes one segment and its index files, batch by batch."""

    def __init__(
        self, task: CleaningTask, base_offset: int, throttle: Callable[[int], None]
    ) -> None:
        self._task = task
        self._throttle = throttle
        self._segment = LogSegment(
            cleaned_directory(task.directory),
            base_offset,
            created_ms=0,
            rebuild=lambda segment: SegmentIndexes.empty(segment.base_offset),
        )
        self._segment.create()
        self._content = bytearray()
        self._batches: list[NewBatch] = []

    def has_room_for(self, segment: SegmentToClean) -> bool:
        """Whether one more segment fits, whatever is left of it."""
        self._write()
        return self._task.limits.allow(
            segment,
            base_offset=self._segment.base_offset,
            size_bytes=self._segment.size_bytes,
            entry_count=self._segment.entry_count,
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing was added."""
        return not self._batches and self._segment.size_bytes == 0

    def add(self, batch: bytes) -> None:
        """Add a batch behind those that were added before."""
        header = parse_header(batch)
        self._batches.append(
            NewBatch(
                len(self._content), header.base_offset, header.next_offset, header.max_timestamp_ms
            )
        )
        self._content += batch
        if len(self._content) >= WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        if not self._batches:
            return
        self._throttle(len(self._content))
        self._segment.append(
            self._content, self._batches, interval_bytes=self._task.index_interval_bytes
        )
        self._content = bytearray()
        self._batches = []

    def seal(
        self, replaced: Sequence[SegmentToClean], aborted: Sequence[AbortedTransaction]
    ) -> SealRecord:
        """Write the rest and the index files; all is durable but the names."""
        self._write()
        segment = self._segment
        for transaction in aborted:
            segment.indexes.txn.append(transaction)
        segment.end_at(replaced[-1].end_offset)
        seal = segment.write_indexes()
        segment.close()
        # Retention goes by it where records have no time of their own.
        newest = segment_path(self._task.directory, replaced[-1].base_offset, LOG_SUFFIX).stat()
        os.utime(segment.path, ns=(newest.st_mtime_ns, newest.st_mtime_ns))
        for path in self._paths():
            if path.exists():
                sync_file(path)
        return seal

    def discard(self) -> None:
        """Remove what was written."""
        self._segment.close()
        for path in self._paths():
            path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        directory, base_offset = self._segment.directory, self._segment.base_offset
        return [segment_path(directory, base_offset, suffix) for suffix in _SUFFIXES]


_SUFFIXES = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


def _batches(
    directory: Path, segment: SegmentToClean, throttle: Callable[[int], None]
) -> Iterator[ScannedBatch]:
    """Yield every batch of the segment. Raises ``CorruptRecordBatch`` if that is not all of it."""
    path = segment_path(directory, segment.base_offset, LOG_SUFFIX)
    position = 0
    with closing(scan_file(path, segment.size_bytes)) as batches:
        for batch in batches:
            throttle(batch.header.size_bytes)
            yield batch
            position += batch.header.size_bytes
    if position != segment.size_bytes:
        raise CorruptRecordBatch(
            f"{path} holds no batch at position {position} of {segment.size_bytes}"
        )
