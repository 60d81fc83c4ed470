"""Appends to one log: check, assign offsets, roll if needed, write, update the state.

An append is checked completely before its first byte is written. The state is updated after
the write, so an append that fails leaves the log unchanged.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog_core.errors import FencedLeaderEpoch
from tidelog_core.log.append_checks import (
    LOG_APPEND_TIME,
    CheckedBatches,
    PositionedHeader,
    check_replicated,
)
from tidelog_core.log.leader_epochs import LeaderEpochs
from tidelog_core.log.log_start import LogStart
from tidelog_core.log.producers.log_producers import LogProducers
from tidelog_core.log.producers.producer_snapshots import write_snapshot
from tidelog_core.log.producers.producer_state import RetainedBatch
from tidelog_core.log.producers.staged_append import (
    StagedAppend,
    check_offsets_ascend,
    split_by_size,
    stage_follower_append,
    stage_leader_append,
)
from tidelog_core.log.segments.log_segments import LogSegments
from tidelog_core.log.values import WITHOUT_LIMIT, AppendInfo, AppendLimit, AppendOrigin
from tidelog_core.model import NO_TIMESTAMP
from tidelog_core.records.batch import WritableBuffer


class LogAppender:
    """Writes to the active segment of one log, and seals it."""

    __slots__ = ("_clock_ms", "_epochs", "_producers", "_segments", "_start")

    def __init__(
        self,
        segments: LogSegments,
        epochs: LeaderEpochs,
        producers: LogProducers,
        start: LogStart,
        *,
        clock_ms: Callable[[], int],
    ) -> None:
        self._segments = segments
        self._epochs = epochs
        self._producers = producers
        self._start = start
        self._clock_ms = clock_ms

    def append_as_leader(
        self,
        batches: WritableBuffer,
        *,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        checked: CheckedBatches | None = None,
    ) -> AppendInfo:
        """Append as ``LocalLog.append_as_leader``."""
        segments = self._segments
        if segments.is_offline:
            segments.check_online()
        if leader_epoch < self._epochs.latest:
            raise FencedLeaderEpoch(
                f"epoch {leader_epoch} cannot write to {segments.partition} after "
                f"epoch {self._epochs.latest}"
            )
        now_ms = self._clock_ms()
        base_offset = segments.all[-1].end_offset
        staged = stage_leader_append(
            batches,
            self._producers.state,
            segments.config,
            origin=origin,
            base_offset=base_offset,
            now_ms=now_ms,
            checked_before=checked,
        )
        if isinstance(staged, RetainedBatch):
            return self._duplicate(staged)
        append_time_ms = None
        if segments.config.message_timestamp_type == LOG_APPEND_TIME:
            append_time_ms = now_ms
        self._make_room(staged)
        staged.stamp(leader_epoch=leader_epoch, append_time_ms=append_time_ms)
        segments.append(staged.buffer, staged.batches)
        if leader_epoch > self._epochs.latest:
            self._epochs.assign(leader_epoch, base_offset)
        self._producers.on_append(staged)
        return AppendInfo(
            base_offset,
            staged.end_offset - 1,
            NO_TIMESTAMP if append_time_ms is None else append_time_ms,
            self._start.offset,
            len(staged.buffer),
            False,
            len(staged.batches),
        )

    def append_as_follower(
        self, batches: WritableBuffer, limit: AppendLimit = WITHOUT_LIMIT
    ) -> AppendInfo:
        """Append as ``LocalLog.append_as_follower``."""
        self._segments.check_online()
        headers, size_bytes = check_replicated(batches, limit)
        segments = self._segments
        end_offset, start_offset = segments.end_offset, self._start.offset
        if not headers:
            return AppendInfo(end_offset, end_offset - 1, NO_TIMESTAMP, start_offset, 0, False, 0)
        check_offsets_ascend(headers, end_offset, segments.partition)
        runs = split_by_size(
            headers,
            first_room_bytes=segments.config.segment_bytes - segments.active.size_bytes,
            room_bytes=segments.config.segment_bytes,
        )
        with memoryview(batches) as view:
            for run in runs:
                last_position, last_header = run[-1]
                with view[run[0][0] : last_position + last_header.size_bytes] as content:
                    self._append_run(content, run)
        last = headers[-1][1]
        append_time_ms = last.max_timestamp_ms if last.is_log_append_time else NO_TIMESTAMP
        first_offset = headers[0][1].base_offset
        return AppendInfo(
            first_offset,
            last.last_offset,
            append_time_ms,
            start_offset,
            size_bytes,
            False,
            len(headers),
        )

    def _append_run(self, content: memoryview, run: list[PositionedHeader]) -> None:
        staged = stage_follower_append(content, run, self._producers.state, now_ms=self._clock_ms())
        self._make_room(staged)
        self._segments.append(content, staged.batches)
        for _, header in run:
            if header.partition_leader_epoch > self._epochs.latest:
                self._epochs.assign(header.partition_leader_epoch, header.base_offset)
        self._producers.on_append(staged)

    def _make_room(self, staged: StagedAppend) -> None:
        if self._segments.should_roll(
            len(staged.buffer),
            last_offset=staged.end_offset - 1,
            max_timestamp_ms=staged.max_timestamp_ms,
        ):
            self.roll()

    def _duplicate(self, batch: RetainedBatch) -> AppendInfo:
        is_append_time = self._segments.config.message_timestamp_type == LOG_APPEND_TIME
        return AppendInfo(
            batch.first_offset,
            batch.last_offset,
            batch.timestamp_ms if is_append_time else NO_TIMESTAMP,
            self._start.offset,
            0,
            True,
            0,
        )

    def roll(self) -> None:
        """Seal the active segment and start another, unless it is empty. Not durable on return."""
        segments = self._segments
        segments.check_online()
        if segments.active.base_offset == segments.end_offset:
            return
        self._producers.expire()
        with segments.storage_errors("roll", is_append=True):
            write_snapshot(segments.directory, self._producers.state)
        segments.roll()
