"""Moves the segments of a filling log in front of the first segment of its log, in steps.

1. any thread: lower the recovery point, durably; move the files; write the new start
2. the log's thread: put the segments in; readers have them from then on
3. any thread: make durable what the log goes on from; remove the mark, durably
4. the log's thread: note that nothing is missing any more

A crash before the end of 3 leaves the mark, and the log is thrown away. The recovery point comes
first nevertheless: a log without batches that it had flushed would be taken for damaged.

Until then nothing else may write the log's checkpoints, or remove segments: it finishes the steps
first (``LogFill.settle``). Appends and rolls go on.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog_core.log.alternating_steps import AlternatingSteps
from tidelog_core.log.checkpoint import write_checkpoint
from tidelog_core.log.paths import RECOVERY_POINT_FILE, START_OFFSET_FILE
from tidelog_core.log.segments.log_segments import LogSegments
from tidelog_core.log.segments.segment import LogSegment
from tidelog_core.log.unfilled_range import end_filling, move_segments


class PendingFill(AlternatingSteps):
    """The steps of one fill. Made by the log's thread.

    Once they are done, it is durable that no records are missing any more.
    """

    def __init__(
        self,
        segments: LogSegments,
        found: LogSegments,
        *,
        recovery_point: int,
        log_start_offset: int,
        put: Callable[[list[LogSegment]], None],
        end: Callable[[], None],
    ) -> None:
        """``found`` is closed. ``put`` and ``end`` are the steps of the log's thread."""
        super().__init__(self._move, lambda: put(self._moved), self._end, end)
        self._segments = segments
        self._found = found
        self._recovery_point = recovery_point
        self._log_start_offset = log_start_offset
        self._moved: list[LogSegment] = []

    def _move(self) -> None:
        segments, found = self._segments, self._found
        write_checkpoint(segments.directory / RECOVERY_POINT_FILE, [[self._recovery_point]])
        self._moved = move_segments(found, segments)
        # Before the segments are there: a disk may be full, and then another log fills this.
        row = [self._log_start_offset, found.start_offset]
        write_checkpoint(segments.directory / START_OFFSET_FILE, [row])

    def _end(self) -> None:
        end_filling(self._segments.directory, self._found.start_offset)
