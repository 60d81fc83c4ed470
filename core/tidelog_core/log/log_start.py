"""Tracks the log start offset, the local log start offset and the end of the tiered segments.

    log start ≤ local start ≤ … end of the sealed segments ≤ log end

Records below the log start are deleted. The local start is the base offset of the first
segment; records between the two are only in the tier. Both are stored before segments
are removed, so the next open finishes a removal that a crash interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tidelog_core.errors import StorageError
from tidelog_core.log.checkpoint import DISK_FULL, write_checkpoint
from tidelog_core.log.leader_epochs import LeaderEpochs
from tidelog_core.log.paths import START_OFFSET_FILE
from tidelog_core.log.producers.producer_snapshots import snapshot_path
from tidelog_core.log.producers.producer_state import ProducerState
from tidelog_core.log.sealed_segment import describe_sealed, make_files_whole
from tidelog_core.log.segments.log_segments import LogSegments
from tidelog_core.log.values import SealedSegment


class LogStart:
    """The start of one log."""

    __slots__ = ("_epochs", "_sealed", "_segments", "copied_end", "held", "offset", "tiered_up_to")

    def __init__(self, segments: LogSegments, epochs: LeaderEpochs, *, offset: int) -> None:
        self._segments = segments
        self._epochs = epochs
        self._sealed: dict[int, SealedSegment] = {}  # by base offset, filled on first use
        self.offset = offset  # the first that may be read, here or from the tier
        self.tiered_up_to = 0  # everything below is durable in the tier
        # The greatest of these ends that was above the log start. Below it the tier has, or has
        # had, every record, also those that the log start has passed since; -1: not known.
        self.copied_end = -1
        # Segments with offsets from the first to the second one stay as they are.
        self.held: tuple[int, int] | None = None

    def sealed_above(self, offset: int) -> Iterator[SealedSegment]:
        """Yield the segments but the active one that reach above the offset, oldest first."""
        segments = self._segments
        every = segments.all
        for index in range(segments.floor_index(offset), len(every) - 1):
            segment = every[index]
            if segment.end_offset <= offset:
                continue
            known = self._sealed.get(segment.base_offset)
            if known is None:
                with segments.storage_errors("reading of a sealed segment"):
                    known = describe_sealed(segments, segment, self._epochs)
                self._sealed[segment.base_offset] = known
            yield known

    def count_sealed_above(self, offset: int) -> tuple[int, int]:
        """Return number and bytes of the segments that ``sealed_above`` would yield."""
        segments = self._segments
        every = segments.all
        count = size_bytes = 0
        for index in range(segments.floor_index(offset), len(every) - 1):
            segment = every[index]
            if segment.end_offset > offset:
                count += 1
                size_bytes += segment.size_bytes
        return count, size_bytes

    def make_whole(
        self, sealed: SealedSegment, producers_at: Callable[[int], ProducerState]
    ) -> None:
        """Check a sealed segment's files, and rebuild missing ones. Raises ``StorageError``."""
        with self._segments.storage_errors("reading of a sealed segment"):
            make_files_whole(self._segments, sealed, producers_at)

    def forget_sealed(self) -> None:
        """Drop the cached descriptions: segments were removed, or begin later."""
        self._sealed.clear()

    def note_tiered(self, offset: int) -> None:
        """Note that every record from the log start up to the offset is durable in the tier.

        An offset at the log start says nothing: a tier without records ends there too.
        """
        self.tiered_up_to = max(self.tiered_up_to, offset)
        if offset > self.offset:
            self.copied_end = max(self.copied_end, offset)

    def advance(self, offset: int) -> None:
        """Move the log start forward and remove the segments below it. Durable on return."""
        count = self._count_below(offset)
        self._write_to_remove(count, offset, self._segments.start_offset)
        self.offset = offset
        self._epochs.truncate_from_start(offset)
        self._sealed.clear()  # Their first leader epoch may have been cut.
        self.remove_segments_below(offset)

    def remove_segments_below(self, offset: int) -> int:
        """Remove the sealed segments wholly below ``offset``. Returns the bytes freed."""
        segments = self._segments
        count = self._count_below(offset)
        if count == 0:
            return 0
        start_offset = segments.all[count].base_offset
        # Written first: if a crash leaves some of the files, the next open removes them.
        self._write_to_remove(count, self.offset, start_offset)
        base_offsets = [segment.base_offset for segment in segments.all[:count]]
        for base_offset in base_offsets:
            self._sealed.pop(base_offset, None)
        freed_bytes = segments.remove_first(count)
        with segments.storage_errors("removal of segments"):
            # By name, because the directory may list thousands of files. A snapshot that a close
            # wrote at an offset within a segment is removed when the log is opened.
            for base_offset in base_offsets:
                snapshot_path(segments.directory, base_offset).unlink(missing_ok=True)
        return freed_bytes

    def _count_below(self, offset: int) -> int:
        """Return how many segments are sealed, wholly below the offset, and not held."""
        if self.held is not None:
            offset = min(offset, self.held[0])
        every = self._segments.all
        count = min(self._segments.floor_index(offset), len(every) - 1)
        if count < len(every) - 1 and every[count].end_offset <= offset:
            count += 1
        return count

    def _write_to_remove(self, count: int, log_start_offset: int, local_start_offset: int) -> None:
        """Write the log's start as it will be without the first segments."""
        segments = self._segments
        try:
            self._write(log_start_offset, local_start_offset)
        except StorageError as error:
            if error.errno not in DISK_FULL or not count:
                raise
            # A full disk must not keep us from freeing it. Index files can be rebuilt.
            with segments.storage_errors("removal of segments"):
                for segment in segments.all[:count]:
                    segment.remove_index_files()
            self._write(log_start_offset, local_start_offset)

    def _write(self, log_start_offset: int, local_start_offset: int) -> None:
        with self._segments.storage_errors("checkpoint"):
            path = self._segments.directory / START_OFFSET_FILE
            write_checkpoint(path, [[log_start_offset, local_start_offset]])
