"""Reads a log's sealed segments, and seals the segments that replace them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tidelog_core.compaction.rewrite import WalkedBatch
from tidelog_core.compaction.segment_writer import SegmentWriter
from tidelog_core.errors import CorruptRecordBatch
from tidelog_core.log.checkpoint import sync_file
from tidelog_core.log.cleaned_segments import CleanedSegment, SegmentToClean
from tidelog_core.log.paths import LOG_SUFFIX, segment_path
from tidelog_core.log.segments.batch_scan import scan_file
from tidelog_core.log.segments.segment_indexes import SealRecord
from tidelog_core.log.values import AbortedTransaction


@dataclass(frozen=True, slots=True)
class CleanedGroup:
    """The result for one group; ``cleaned`` is ``None`` if its segment stays as it is."""

    cleaned: CleanedSegment | None
    bytes_read: int
    bytes_written: int
    removed_record_count: int = 0


def read_sealed(
    directory: Path, segment: SegmentToClean, throttle: Callable[[int], None]
) -> Iterator[WalkedBatch]:
    """Yield every batch of the segment. Raises ``CorruptRecordBatch`` if other bytes follow.

    ``throttle`` gets the size of each batch before it is yielded, and may block.
    """
    path = segment_path(directory, segment.base_offset, LOG_SUFFIX)
    position = 0
    with closing(scan_file(path, segment.size_bytes)) as batches:
        for batch in batches:
            throttle(batch.header.size_bytes)
            yield batch.buffer, batch.at, batch.header
            position += batch.header.size_bytes
    if position != segment.size_bytes:
        raise CorruptRecordBatch(
            f"{path} holds no batch at position {position} of {segment.size_bytes}"
        )


def seal_in_place_of(
    replaced: Sequence[SegmentToClean],
    writer: SegmentWriter,
    directory: Path,
    aborted: Sequence[AbortedTransaction],
) -> SealRecord:
    """Write the remaining content and the index files; all but the names is durable on return."""
    seal = writer.seal(replaced[-1].end_offset, aborted)
    # Retention uses it for records without a timestamp.
    newest = segment_path(directory, replaced[-1].base_offset, LOG_SUFFIX).stat()
    os.utime(writer.path, ns=(newest.st_mtime_ns, newest.st_mtime_ns))
    for path in writer.paths():
        if path.exists():
            sync_file(path)
    return seal
