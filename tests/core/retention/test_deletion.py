"""Which segments go, and that two who delete them do no harm to each other."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest
from tidelog_core.errors import VersionConflict
from tidelog_core.metadata import records
from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.metadata.sqlite import SqliteMetadataStore
from tidelog_core.retention.deletion import (
    below_log_start,
    drop_segments,
    next_deletable_ms,
    read_segments,
    select_deletable,
    start_deletions,
)

from tests.core.tier.test_keys import meta


def test_only_finished_segments_wholly_below_the_log_start_go() -> None:
    whole, part = meta(0, 10), meta(10, 20)
    copying = meta(0, 5, state=SegmentState.COPY_STARTED)
    deleting = meta(0, 6, state=SegmentState.DELETE_STARTED)
    assert below_log_start([whole, part, copying, deleting], 15) == [whole]


def test_a_deletion_ends_at_its_time_and_one_without_time_at_once() -> None:
    def doomed(ms: int) -> SegmentMeta:
        return meta(state=SegmentState.DELETE_STARTED, deletable_ms=ms)

    before, due, later = doomed(0), doomed(100), doomed(101)
    metas = [before, due, later, meta(), meta(state=SegmentState.COPY_STARTED)]
    assert select_deletable(metas, now_ms=100) == [before, due]
    assert next_deletable_ms([later, due, meta()]) == 100
    assert next_deletable_ms([meta()]) is None


def test_items_written_before_there_was_a_time_are_read_and_written_as_they_were() -> None:
    old = meta(state=SegmentState.DELETE_STARTED)
    assert "deletable_ms" not in old.to_body()
    new = dataclasses.replace(old, deletable_ms=7)
    for segment in (old, new):
        item = records.Item(segment.item_id, 1, segment.to_body())
        assert SegmentMeta.from_item(item) == segment


def test_of_two_deletions_the_first_ones_time_counts(tmp_path: Path) -> None:
    async def run() -> None:
        store = SqliteMetadataStore(tmp_path / "metadata.db")
        segments = [meta(number, number + 1) for number in range(200)]
        for segment in segments:
            await store.commit([records.put(segment, is_logged=False)])
        seen = await read_segments(store, segments[0].topic_id, 3)
        started = await start_deletions(store, seen, deletable_ms=100)
        assert started == await read_segments(store, segments[0].topic_id, 3)
        assert [one.version for one in started] == [2] * 200
        with pytest.raises(VersionConflict):
            await start_deletions(store, seen, deletable_ms=200)
        assert await start_deletions(store, started, deletable_ms=200) == started
        await drop_segments(store, started[50:])
        await drop_segments(store, started)  # some of them a second time
        assert await read_segments(store, segments[0].topic_id, 3) == []
        await drop_segments(store, started)
        await store.close()

    asyncio.run(run())
