"""Compacts the segment files of one log: reads them twice, and writes new ones.

The first pass reads the uncompacted part and collects the newest offset of every key. The
second pass reads all segments from the log's start and drops older records. The new files go
to the directory ``cleaned`` and are fsynced there; ``log.cleaned_segments`` swaps them in.
The log need not be open, or be in this process.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidelog_core.compaction.offset_map import OffsetMap
from tidelog_core.compaction.rewrite import (
    DeleteRule,
    LastBatch,
    Rewrite,
    last_batches,
)
from tidelog_core.compaction.sealed_files import CleanedGroup, read_sealed, seal_in_place_of
from tidelog_core.compaction.segment_writer import SegmentWriter
from tidelog_core.compaction.selection import SegmentLimits
from tidelog_core.compaction.transactions import CleanedTransactions
from tidelog_core.config import TopicConfig
from tidelog_core.log.cleaned_segments import CleanedSegment, SegmentToClean, cleaned_directory
from tidelog_core.log.cleaning import CleaningSource
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.records.batch import build_empty_batch


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
    """Return the task of compacting the segments of ``source``.

    Without ``deletes`` tombstones and markers stay. No compacted segment spans ``apart_at``.
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


def build_offset_map(task: CleaningTask, throttle: Callable[[int], None]) -> OffsetMap:
    """Read the uncompacted segments until they end or the map is full.

    ``throttle`` gets the number of bytes before each read, and may block. Raises
    ``CorruptRecordBatch``, ``OSError``.
    """
    latest = OffsetMap(start_offset=task.dirty_from, size_bytes_max=task.map_bytes_max)
    transactions = CleanedTransactions(
        one for one in task.aborted if one.last_offset >= task.dirty_from
    )
    for segment in task.segments:
        if segment.end_offset <= task.dirty_from or latest.is_full:
            continue
        batches = read_sealed(task.directory, segment, throttle)
        latest.add_segment(batches, transactions, end_offset=segment.end_offset)
    return latest


def clean_groups(
    task: CleaningTask, latest: OffsetMap, throttle: Callable[[int], None]
) -> Iterator[CleanedGroup]:
    """Write the remaining records of the segments that begin below the map's end.

    One file takes the records of as many segments as fit, so that no segment stays empty:
    readers would have to request each of them. Raises ``CorruptRecordBatch``, ``OSError``;
    the groups yielded before are complete.
    """
    target = cleaned_directory(task.directory)
    shutil.rmtree(target, ignore_errors=True)  # from an interrupted run
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
    """Take segments from the front and write their remaining records."""
    assert rewrite.transactions is not None
    writer = SegmentWriter(
        cleaned_directory(task.directory),
        segments[0].base_offset,
        index_interval_bytes=task.index_interval_bytes,
        throttle=throttle,
    )
    group: list[SegmentToClean] = []
    try:
        while segments and (not group or _fits(task, writer, segments[0])):
            group.append(segments.popleft())
            writer.rewrite(read_sealed(task.directory, group[-1], throttle), rewrite.batch)
        if writer.size_bytes == 0 and writer.last_read is not None:
            # An empty file would look like one that was lost.
            writer.append(build_empty_batch(writer.last_read))
        aborted = rewrite.transactions.take_kept()
        bytes_read = sum(segment.size_bytes for segment in group)
        if len(group) == 1 and not writer.is_changed:
            writer.discard()
            return CleanedGroup(None, bytes_read, 0)
        seal = seal_in_place_of(group, writer, task.directory, aborted)
        return CleanedGroup(
            CleanedSegment(seal, tuple(group)),
            bytes_read,
            seal.size_bytes,
            writer.removed_record_count,
        )
    except BaseException:
        writer.discard()
        raise


def _fits(task: CleaningTask, writer: SegmentWriter, segment: SegmentToClean) -> bool:
    return writer.has_room_for(segment, task.limits, index_entry_count=segment.index_entry_count)
