"""Erases one key's records from the segment files of one log, whether or not it is compacted.

Each segment that holds records of the key is written again without them, and replaces the old one
as in compaction (``log.cleaned_segments``: safe after a crash at any step). Segments are
not joined, and a batch that loses all records keeps its header. So everything that a log derives
from headers stays: offsets, producers' sequences, starts and ends of transactions, the index of
aborted ones.

Only the SHA-256 of the key is passed, because the request must not outlive the key.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidelog_core.compaction.rewrite import Rewrite
from tidelog_core.compaction.sealed_files import CleanedGroup, read_sealed, seal_in_place_of
from tidelog_core.compaction.segment_writer import SegmentWriter
from tidelog_core.log.cleaned_segments import CleanedSegment, SegmentToClean, cleaned_directory
from tidelog_core.log.cleaning import CleaningSource
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.records.batch import Record, decode_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasingTask:
    """Everything that erasing a key from one log takes."""

    directory: Path
    segments: Sequence[SegmentToClean]  # sealed, flushed and replicated
    up_to: int  # exclusive: records at or above stay
    key_sha256: bytes
    aborted: Sequence[AbortedTransaction]
    index_interval_bytes: int


def plan_erasing(
    source: CleaningSource, *, up_to: int, key_sha256: bytes, index_interval_bytes: int
) -> ErasingTask:
    """Return the task of erasing the key's records below ``up_to`` from the segments."""
    return ErasingTask(
        directory=source.directory,
        segments=source.segments,
        up_to=up_to,
        key_sha256=key_sha256,
        aborted=source.aborted,
        index_interval_bytes=index_interval_bytes,
    )


def erase_groups(task: ErasingTask, throttle: Callable[[int], None]) -> Iterator[CleanedGroup]:
    """Yield the result of each segment; only segments that hold the key are written.

    Raises ``CorruptRecordBatch``, ``OSError``; segments yielded before are complete.
    """
    target = cleaned_directory(task.directory)
    shutil.rmtree(target, ignore_errors=True)  # from an interrupted run
    target.mkdir()
    for segment in task.segments:
        if _holds_key(task, segment, throttle):
            yield _erase(task, segment, throttle)
        else:
            yield CleanedGroup(None, segment.size_bytes, 0)


def _is_erased(task: ErasingTask, record: Record) -> bool:
    return (
        record.key is not None
        and record.offset < task.up_to
        and hashlib.sha256(record.key).digest() == task.key_sha256
    )


def _holds_key(task: ErasingTask, segment: SegmentToClean, throttle: Callable[[int], None]) -> bool:
    # Most segments lack the key, and need not be copied to find that out.
    return any(
        _is_erased(task, record)
        for buffer, position, header in read_sealed(task.directory, segment, throttle)
        if not header.is_control
        for record in decode_batch(buffer, position, header)
    )


def _erase(
    task: ErasingTask, segment: SegmentToClean, throttle: Callable[[int], None]
) -> CleanedGroup:
    rewrite = Rewrite(
        end_offset=task.up_to,
        keep=lambda record: not _is_erased(task, record),
        keeps_emptied=True,
    )
    writer = SegmentWriter(
        cleaned_directory(task.directory),
        segment.base_offset,
        index_interval_bytes=task.index_interval_bytes,
        throttle=throttle,
    )
    try:
        writer.rewrite(read_sealed(task.directory, segment, throttle), rewrite.batch)
        aborted = [
            one
            for one in task.aborted
            if segment.base_offset <= one.last_offset < segment.end_offset
        ]
        seal = seal_in_place_of([segment], writer, task.directory, aborted)
    except BaseException:
        writer.discard()
        raise
    return CleanedGroup(
        CleanedSegment(seal, (segment,)),
        segment.size_bytes,
        seal.size_bytes,
        writer.removed_record_count,
    )
