"""Selects the segments of a log that may be compacted, and replaces them with the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tidelog_core.errors import StorageError
from tidelog_core.log.checkpoint import write_checkpoint
from tidelog_core.log.cleaned_segments import (
    CleanedSegment,
    PendingSwap,
    SegmentsChanged,
    SegmentToClean,
    cleaned_directory,
    segments_to_clean,
)
from tidelog_core.log.durability import Durability
from tidelog_core.log.paths import CLEANER_OFFSET_FILE
from tidelog_core.log.producers.producer_state import ProducerEntry, ProducerState
from tidelog_core.log.segments.log_segments import LogSegments
from tidelog_core.log.values import AbortedTransaction


@dataclass(frozen=True, slots=True)
class CleaningSource:
    """The input of one compaction. Offsets below ``dirty_from`` are already compacted."""

    directory: Path
    segments: Sequence[SegmentToClean]  # from the local log start on, without a gap
    dirty_from: int
    aborted: tuple[AbortedTransaction, ...]  # all that have records in the segments
    producers: Mapping[int, ProducerEntry]  # every producer of the log; not to be changed
    cut_count: int


class Cleaning:
    """The progress of one log's compaction."""

    __slots__ = ("_durability", "_on_replaced", "_pending", "_segments", "up_to")

    def __init__(
        self,
        segments: LogSegments,
        durability: Durability,
        *,
        up_to: int,
        on_replaced: Callable[[], None],
    ) -> None:
        self._segments = segments
        self._durability = durability
        self._on_replaced = on_replaced  # called when the log's segments have changed
        self._pending: PendingSwap | None = None  # at most one is under way
        self.up_to = up_to  # everything below is compacted

    def segments(self, settled: int, *, dirty_from: int) -> tuple[SegmentToClean, ...]:
        """Return the segments wholly below ``settled``. Raises ``StorageError``."""
        segments = self._segments
        with segments.storage_errors("finding segments to compact"):
            return tuple(segments_to_clean(segments, up_to=settled, dirty_from=dirty_from))

    def begin(
        self, chosen: Sequence[SegmentToClean], *, dirty_from: int, producers: ProducerState
    ) -> CleaningSource:
        """Return the source of a compaction of these segments. Raises ``StorageError``."""
        segments = self._segments
        aborted: list[AbortedTransaction] = []
        with segments.storage_errors("finding segments to compact"):
            for segment in segments.all:
                if segment.collect_aborted(segments.start_offset, chosen[-1].end_offset, aborted):
                    break
        return CleaningSource(
            segments.directory,
            chosen,
            dirty_from,
            tuple(aborted),
            dict(producers.items()),
            segments.cut_count,
        )

    def begin_replacing(self, source: CleaningSource, cleaned: CleanedSegment) -> PendingSwap:
        """Begin to replace the segments. Raises ``SegmentsChanged``, ``StorageError``."""
        self.settle()
        self._require_uncut(source)
        swap = PendingSwap(self._segments, cleaned)
        # A flush that has begun would write seal records that lack the new one.
        self._durability.cancel()
        self._pending = swap
        return swap

    def go_on_replacing(self, swap: PendingSwap) -> None:
        """Do the swap's next step, if it is one for the log's thread. Raises ``StorageError``."""
        segments = self._segments
        if swap.is_done:
            return  # Another caller has finished it.
        segments.check_online()
        try:
            with segments.storage_errors("compaction"):
                swap.go_on()
        except StorageError:
            self._pending = None
            segments.seal_file.require_rewrite()
            if swap.has_begun:
                segments.go_offline()  # The next open finishes it.
            raise
        self._on_replaced()
        if swap.is_done:
            self._pending = None

    def settle(self) -> None:
        """Finish a swap that has begun. Blocks. Raises ``StorageError``."""
        swap = self._pending
        while swap is not None and not swap.is_done:
            swap.run()
            self.go_on_replacing(swap)
        self._pending = None

    def end(self, source: CleaningSource, up_to: int) -> None:
        """Move ``up_to`` forward, durably. Raises ``SegmentsChanged``, ``StorageError``."""
        self._require_uncut(source)
        if up_to > self.up_to:
            self._write(up_to)
        with suppress(OSError):  # The next run or opening removes it.
            cleaned_directory(self._segments.directory).rmdir()

    def forget_above(self, offset: int) -> None:
        """Count offsets above as not compacted, durably: the log is about to be truncated there."""
        self._segments.cut_count += 1
        if self.up_to > offset:
            self._write(offset)

    def _require_uncut(self, source: CleaningSource) -> None:
        if source.cut_count != self._segments.cut_count:
            raise SegmentsChanged(f"{self._segments.partition} was cut while it was compacted")

    def _write(self, up_to: int) -> None:
        with self._segments.storage_errors("checkpoint"):
            write_checkpoint(self._segments.directory / CLEANER_OFFSET_FILE, [[up_to]])
        self.up_to = up_to
