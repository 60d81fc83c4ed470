"""Turns the bytes of an append into checked batches with offsets. Writes nothing."""

from __future__ import annotations

from typing import NamedTuple

from tidelog_core.config import TopicConfig
from tidelog_core.log.append_checks import (
    LOG_APPEND_TIME,
    CheckedBatches,
    PositionedHeader,
    check_own,
    check_produced,
)
from tidelog_core.log.producers.producer_state import ProducerDraft, ProducerState, RetainedBatch
from tidelog_core.log.segments.batch_scan import read_marker
from tidelog_core.log.segments.segment import NewBatch
from tidelog_core.log.values import AppendOrigin, UnexpectedAppendOffset
from tidelog_core.model import NO_TIMESTAMP, TopicPartition
from tidelog_core.records.batch import (
    WritableBuffer,
    patch,
    set_log_append_time,
)


class StagedAppend(NamedTuple):
    """Batches that may be written, and their changes to the producers' state."""

    buffer: WritableBuffer
    batches: list[NewBatch]
    draft: ProducerDraft | None  # None: no batch has a producer id
    end_offset: int  # exclusive
    max_timestamp_ms: int

    def stamp(self, *, leader_epoch: int, append_time_ms: int | None) -> None:
        """Put offsets, epoch and, if the topic wants it, the time into the buffer."""
        for position, base_offset, _, _ in self.batches:
            if append_time_ms is not None:
                set_log_append_time(self.buffer, position, append_time_ms)
            patch(self.buffer, position, base_offset=base_offset, leader_epoch=leader_epoch)


def stage_leader_append(
    buffer: WritableBuffer,
    producers: ProducerState,
    config: TopicConfig,
    *,
    origin: AppendOrigin,
    base_offset: int,
    now_ms: int,
    checked_before: CheckedBatches | None = None,
) -> StagedAppend | RetainedBatch:
    """Check batches and assign offsets from ``base_offset`` on; the buffer is not changed.

    ``checked_before`` is the result of an earlier ``check_produced`` of the buffer. Returns
    the earlier batch if this one is a duplicate. Raises the errors of ``check_produced`` and
    ``ProducerDraft.add``.
    """
    if checked_before is not None:
        buffer, checked = checked_before
    elif origin is AppendOrigin.CLIENT:
        buffer, checked = check_produced(buffer, config, now_ms=now_ms)
    else:
        buffer, checked = check_own(buffer, config)
    append_time_ms = now_ms if config.message_timestamp_type == LOG_APPEND_TIME else None
    draft: ProducerDraft | None = None
    batches: list[NewBatch] = []
    newest_ms = NO_TIMESTAMP
    for position, client_header in checked:
        header = client_header
        if append_time_ms is not None:
            header = header._replace(max_timestamp_ms=append_time_ms)
        if header.producer_id >= 0:
            if origin is AppendOrigin.CLIENT:
                duplicate = producers.find_duplicate(header)
                if duplicate is not None:
                    return duplicate
            if draft is None:
                draft = producers.stage(origin, now_ms=now_ms)
            draft.add(header, base_offset, read_marker(buffer, position, header))
        next_offset = base_offset + header.last_offset_delta + 1
        timestamp_ms = header.max_timestamp_ms
        batches.append(NewBatch(position, base_offset, next_offset, timestamp_ms))
        newest_ms = max(newest_ms, timestamp_ms)
        base_offset = next_offset
    return StagedAppend(buffer, batches, draft, base_offset, newest_ms)


def stage_follower_append(
    run: memoryview, headers: list[PositionedHeader], producers: ProducerState, *, now_ms: int
) -> StagedAppend:
    """Stage a leader's batches unchanged. ``headers`` have their positions in a longer run."""
    draft: ProducerDraft | None = None
    first_position = headers[0][0]
    batches: list[NewBatch] = []
    for position, header in headers:
        at = position - first_position
        if header.producer_id >= 0:
            if draft is None:
                draft = producers.stage(AppendOrigin.REPLICATION, now_ms=now_ms)
            draft.add(header, header.base_offset, read_marker(run, at, header))
        batches.append(
            NewBatch(at, header.base_offset, header.next_offset, header.max_timestamp_ms)
        )
    newest_ms = max(batch.max_timestamp_ms for batch in batches)
    return StagedAppend(run, batches, draft, batches[-1].next_offset, newest_ms)


def check_offsets_ascend(
    headers: list[PositionedHeader], end_offset: int, partition: TopicPartition
) -> None:
    """Raise ``UnexpectedAppendOffset`` unless every batch is behind the one before it."""
    for _, header in headers:
        if header.base_offset < end_offset:
            raise UnexpectedAppendOffset(
                f"a batch with offsets [{header.base_offset}, {header.next_offset}) cannot "
                f"follow offset {end_offset} of {partition}"
            )
        end_offset = header.next_offset


def split_by_size(
    headers: list[PositionedHeader], *, first_room_bytes: int, room_bytes: int
) -> list[list[PositionedHeader]]:
    """Split batches into runs, the first of at most ``first_room_bytes``, then ``room_bytes``.

    A leader's batches may be more than one segment's worth. A run has at least one
    batch, however large that is.
    """
    runs: list[list[PositionedHeader]] = [[]]
    room = first_room_bytes
    for position, header in headers:
        run = runs[-1]
        if run and position + header.size_bytes - run[0][0] > room:
            run, room = [], room_bytes
            runs.append(run)
        run.append((position, header))
    return runs
