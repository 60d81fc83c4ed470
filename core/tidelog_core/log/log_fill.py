"""The records that a log lacks before its start, and the fill log for them (``unfilled_range``).

Readers get from the fill log what it has so far, up to its own last stable offset: an abort
that comes later in the missing records is not known there yet.

Nothing of the fill log is durable before its segments are given away. A crash throws it away.
Nor is anything of the log itself, before it counts as whole.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Protocol

from tidelog_core.log.durability import Durability
from tidelog_core.log.log_start import LogStart
from tidelog_core.log.paths import FILLING_DIRECTORY
from tidelog_core.log.pending_fill import PendingFill
from tidelog_core.log.segments.log_segments import LogSegments
from tidelog_core.log.segments.segment import LogSegment
from tidelog_core.log.unfilled_range import (
    Unfilled,
    UnfilledMark,
    clear_filling,
    end_filling,
    remove_moved,
)
from tidelog_core.log.values import LogRead


class FillLog(Protocol):
    """The log that gets the records that another log lacks; ``LocalLog``."""

    @property
    def is_offline(self) -> bool:
        """Whether it was given up."""

    @property
    def last_stable_offset(self) -> int:
        """The end of the records that may be read from it, exclusive."""

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        up_to: int,
        min_one_batch: bool = True,
        include_aborted: bool = False,
    ) -> LogRead:
        """Return bytes as ``ReadableLog.read`` does."""


class LogFill:
    """The filling of one log. Its methods raise ``StorageError`` if the disk fails."""

    __slots__ = (
        "_durability",
        "_is_interrupted",
        "_mark",
        "_pending",
        "_segments",
        "_start",
        "fill_log",
        "missing",
    )

    def __init__(
        self,
        segments: LogSegments,
        start: LogStart,
        durability: Durability,
        *,
        missing: Unfilled | None,
    ) -> None:
        """``missing`` is the range that an earlier process left unfilled, if any."""
        self._segments = segments
        self._start = start
        self._durability = durability
        self._is_interrupted = missing is not None
        self._pending: PendingFill | None = None
        self._mark: UnfilledMark | None = None  # the last one; it may not be written yet
        self.fill_log: FillLog | None = None  # the log that gets what is missing
        # What was missing when it began; some of it may be deleted since.
        self.missing = missing

    @property
    def unfilled(self) -> Unfilled | None:
        """The offsets before the local log start that are in neither tier nor log.

        Of what another process has left it stays, also if they were deleted since: nothing of that
        log is known to be durable, and it is restarted.
        """
        found = self.missing
        if found is None or self._is_interrupted:
            return found
        return None if found.end <= self._start.offset else found

    @property
    def is_going_on(self) -> bool:
        """Whether this process fills the log."""
        return self.unfilled is not None and not self._is_interrupted

    @property
    def is_filled(self) -> bool:
        """Whether the log is filled, and only ``end`` must be tried again."""
        found = self.missing
        return found is not None and self._segments.start_offset < found.end

    def lacks(self, offset: int) -> bool:
        """Whether the offset is missing, and cannot be read from the fill log yet."""
        found = self.missing
        if found is None or not found.start <= offset < found.end:
            return False
        return self.fill_log_with(offset) is None

    def fill_log_with(self, offset: int) -> FillLog | None:
        """Return the fill log if it has the offset, which is missing here, and may be read."""
        found, fill_log = self.missing, self.fill_log
        if found is None or fill_log is None or fill_log.is_offline:
            return None
        return fill_log if found.start <= offset < fill_log.last_stable_offset else None

    def mark(self, missing: Unfilled) -> UnfilledMark:
        """Return the mark that these offsets are missing, to be made durable by any thread."""
        self.end()
        self._end_mark()
        with self._segments.storage_errors("start of filling"):
            self._mark = UnfilledMark(self._segments.directory, missing)
        return self._mark

    def begin(self, mark: UnfilledMark) -> None:
        """Note the missing range. Its mark is durable; the log is truncated next."""
        mark.is_taken = True
        self.missing, self._is_interrupted, self.fill_log = mark.unfilled, False, None

    def begin_fill_log(self) -> Path:
        """Return the folder of a new fill log; the caller then sets ``fill_log``."""
        directory = self._segments.directory
        self.fill_log = None
        with self._segments.storage_errors("start of filling"):
            clear_filling(directory)
            remove_moved(directory, self._segments.start_offset)
        return directory / FILLING_DIRECTORY

    def begin_taking(self, found: LogSegments) -> PendingFill:
        """Begin to put the sealed segments of the fill log before the first one.

        Until ``is_done`` the caller runs ``PendingFill.run``, which may block, on any thread, and
        then calls ``go_on`` on the log's thread.
        """
        segments, durability = self._segments, self._durability
        self.fill_log = None
        # A flush that has begun would raise the recovery point again.
        durability.cancel()
        durability.recovery_point = min(durability.recovery_point, found.start_offset)
        found.close()
        self._pending = PendingFill(
            segments,
            found,
            recovery_point=durability.recovery_point,
            log_start_offset=self._start.offset,
            put=self._put,
            end=self._forget,
        )
        return self._pending

    def go_on(self, pending: PendingFill) -> None:
        """Do the next step, if it is one for the log's thread."""
        segments = self._segments
        with segments.storage_errors("filling"):
            pending.go_on()
        segments.check_online()

    def settle(self) -> None:
        """Finish a pending move of segments. Blocks. Its waiters get any failure."""
        pending, self._pending = self._pending, None
        while pending is not None and not pending.is_done and pending.error is None:
            pending.run()
            with suppress(OSError):
                pending.go_on()

    def cancel(self) -> None:
        """Give up what threads do with the files, because the log was given up.

        Waits for what is under way: the next log over the same files may be opened at once.
        """
        if self._pending is not None:
            self._pending.cancel()
        self._end_mark()

    def _end_mark(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.close()

    def _put(self, moved: list[LogSegment]) -> None:
        segments = self._segments
        self._start.forget_sealed()
        segments.put_before(moved)
        segments.cut_count += 1  # An erasure that is done has not seen these.

    def _forget(self) -> None:
        self.missing = self.fill_log = self._pending = None

    def end(self) -> None:
        """Note durably that no records are missing any more. Blocks."""
        if self.missing is None:
            return
        segments = self._segments
        with segments.storage_errors("end of filling"):
            end_filling(segments.directory, segments.start_offset)
        self._forget()

    def end_if_deleted(self) -> None:
        """Forget the missing range if it is below the log start by now."""
        if self.unfilled is None:
            self.end()
