"""A log's part in its compaction: what may be compacted, and taking the result over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tidelog_core.errors import StorageError
from tidelog_core.log.checkpoint import write_checkpoint
from tidelog_core.log.cleaned import (
    CleanedSegment,
    SegmentsChanged,
    SegmentToClean,
    begin_swap,
    cleaned_directory,
    end_swap,
    find_replaced,
    segments_to_clean,
    vouch_for,
)
from tidelog_core.log.durability import Durability
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.paths import CLEANER_OFFSET_FILE, LOG_SUFFIX, segment_path
from tidelog_core.log.producer_state import ProducerEntry, ProducerState
from tidelog_core.log.values import AbortedTransaction


@dataclass(frozen=True, slots=True)
class CleaningSource:
    """What one compaction starts from. Offsets below ``dirty_from`` are compacted."""

    directory: Path
    segments: Sequence[SegmentToClean]  # from the local log start on, without a gap
    dirty_from: int
    aborted: tuple[AbortedTransaction, ...]  # all that have records in the segments
    producers: Mapping[int, ProducerEntry]  # all that the log knows; not to be changed
    cut_count: int


class Cleaning:
    """How far one log is compacted."""

    __slots__ = ("_durability", "_local", "up_to")

    def __init__(self, local: LocalLog, durability: Durability, *, up_to: int) -> None:
        self._local = local
        self._durability = durability
        self.up_to = up_to  # everything below is compacted

    def segments(self, settled: int, *, dirty_from: int) -> tuple[SegmentToClean, ...]:
        """Return the segments wholly below ``settled``. Raises ``StorageError``."""
        local = self._local
        with local.storage_errors("looking for what to compact"):
            return tuple(segments_to_clean(local, up_to=settled, dirty_from=dirty_from))

    def begin(
        self, segments: Sequence[SegmentToClean], *, dirty_from: int, producers: ProducerState
    ) -> CleaningSource:
        """Return what else there is to know of the segments. Raises ``StorageError``."""
        local = self._local
        aborted: list[AbortedTransaction] = []
        with local.storage_errors("looking for what to compact"):
            for segment in local.segments:
                if segment.collect_aborted(local.start_offset, segments[-1].end_offset, aborted):
                    break
        return CleaningSource(
            local.directory,
            segments,
            dirty_from,
            tuple(aborted),
            dict(producers.items()),
            local.cut_count,
        )

    def replace(self, source: CleaningSource, cleaned: CleanedSegment) -> None:
        """Replace the segments. Raises ``SegmentsChanged``, ``StorageError``."""
        local, seal = self._local, cleaned.seal
        self._require_uncut(source)
        replaced = find_replaced(local, cleaned)
        # A flush that has begun would write seal records that lack the new one.
        self._durability.cancel()
        staged = segment_path(cleaned_directory(local.directory), seal.base_offset, LOG_SUFFIX)
        try:
            with local.storage_errors("compaction"):
                vouch_for(local, cleaned)
                begin_swap(local, cleaned)
                end_swap(local, cleaned, replaced)
        except StorageError:
            if not staged.exists():
                local.go_offline()  # It has begun, and the next open finishes it.
            raise

    def end(self, source: CleaningSource, up_to: int) -> None:
        """Move ``up_to`` forward, durably. Raises ``SegmentsChanged``, ``StorageError``."""
        self._require_uncut(source)
        if up_to > self.up_to:
            self._write(up_to)
        with suppress(OSError):  # The next run or opening removes it.
            cleaned_directory(self._local.directory).rmdir()

    def forget_above(self, offset: int) -> None:
        """Count what lies above as not compacted: the log is about to be cut there, durably."""
        self._local.cut_count += 1
        if self.up_to > offset:
            self._write(offset)

    def _require_uncut(self, source: CleaningSource) -> None:
        if source.cut_count != self._local.cut_count:
            raise SegmentsChanged(f"{self._local.partition} was cut while it was compacted")

    def _write(self, up_to: int) -> None:
        with self._local.storage_errors("checkpoint"):
            write_checkpoint(self._local.directory / CLEANER_OFFSET_FILE, [[up_to]])
        self.up_to = up_to
