"""A segment's states, and that two who take the same step do no harm to each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
from tidelog_core.errors import NotLeaderOrFollower, OutcomeUnknown, VersionConflict
from tidelog_core.metadata import records
from tidelog_core.metadata.leadership import Leadership
from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.metadata.store import Item
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.tier.keys import segment_keys
from tidelog_core.tier.lifecycle import (
    AT_ONCE,
    below_log_start,
    delete_given_up_copy,
    drop_segments,
    end_deletions,
    finish_copy,
    finished,
    is_valid_transition,
    marked_for_deletion,
    next_deletable_ms,
    read_segments,
    select_deletable,
    start_copy,
    start_deletions,
)

from tests.support.memory_store import MemoryMetadataStore
from tests.support.segment_items import partition_item, segment_meta

STARTED, FINISHED, MARKED = SegmentState


class RecordingObjects(MemoryObjectStore):
    """Remembers what was deleted by each call."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted: list[list[str]] = []

    async def delete(self, keys: Sequence[str]) -> None:
        self.deleted.append(list(keys))
        await super().delete(keys)


def keys_of(segment: SegmentMeta) -> object:
    return segment_keys("cluster-1", "t", segment)


@pytest.mark.parametrize("source", [None, *SegmentState])
def test_a_segment_goes_forward_only_and_ends_where_its_deletion_does(
    source: SegmentState | None,
) -> None:
    """Source: KIP-405, RemoteLogSegmentState; a state to itself is what compaction finds out."""
    ways = {
        None: [STARTED],
        STARTED: [FINISHED, MARKED],
        FINISHED: [FINISHED, MARKED],
        MARKED: [None],
    }
    found = [target for target in (None, *SegmentState) if is_valid_transition(source, target)]
    assert sorted(found, key=str) == sorted(ways[source], key=str)


def test_nothing_is_made_of_a_segment_whose_deletion_has_begun() -> None:
    with pytest.raises(AssertionError, match="DELETE_STARTED"):
        finished(segment_meta(state=MARKED))
    later = marked_for_deletion(segment_meta(state=MARKED, deletable_ms=5), deletable_ms=9)
    assert later.deletable_ms == 5


@pytest.fixture
async def store() -> MemoryMetadataStore:
    """A store that has the partition of ``segment_meta`` in leader epoch 5."""
    store = MemoryMetadataStore(latency=0)
    await store.commit([records.put(partition_item())])
    return store


THIS, BEFORE = (
    Leadership(partition_item().topic_id, partition_item().partition, epoch) for epoch in (5, 4)
)


async def test_of_each_segment_the_index_is_gone_before_the_log_goes(
    store: MemoryMetadataStore, tmp_path: Path
) -> None:
    """Within one call a store deletes in any order."""
    objects = RecordingObjects()

    segments = [segment_meta(number, number + 1) for number in range(3)]
    await store.commit([records.put(one, is_logged=False) for one in segments])
    seen = await read_segments(store, THIS.topic_id, THIS.partition)
    marked = await start_deletions(store, seen, deletable_ms=AT_ONCE)
    await end_deletions(store, objects, marked, keys_of=keys_of)  # type: ignore[arg-type]
    pairs = [segment_keys("cluster-1", "t", one) for one in segments]
    assert objects.deleted == [[pair.index for pair in pairs], [pair.log for pair in pairs]]
    assert await read_segments(store, THIS.topic_id, THIS.partition) == []


async def test_only_the_leader_of_this_epoch_copies_and_gives_up_others_copies(
    store: MemoryMetadataStore,
) -> None:
    fresh = segment_meta(state=STARTED)
    with pytest.raises(NotLeaderOrFollower):
        await start_copy(store, BEFORE, fresh)
    started = await start_copy(store, THIS, fresh)
    with pytest.raises(NotLeaderOrFollower):
        await finish_copy(store, BEFORE, started)
    with pytest.raises(NotLeaderOrFollower):
        await start_deletions(store, [started], deletable_ms=AT_ONCE, leadership=BEFORE)
    assert await read_segments(store, THIS.topic_id, THIS.partition) == [started]
    (given_up,) = await start_deletions(store, [started], deletable_ms=AT_ONCE, leadership=THIS)
    assert given_up.state is MARKED
    with pytest.raises(VersionConflict):
        await finish_copy(store, THIS, started)


async def test_a_copy_that_has_finished_is_not_deleted_as_one_that_has_not(
    store: MemoryMetadataStore,
) -> None:
    started = await start_copy(store, THIS, segment_meta(state=STARTED))
    copied = await finish_copy(store, THIS, started)
    with pytest.raises(VersionConflict):
        await start_deletions(store, [started], deletable_ms=AT_ONCE)
    assert await read_segments(store, THIS.topic_id, THIS.partition) == [copied]


async def test_a_segment_that_was_compacted_meanwhile_is_deleted_all_the_same(
    store: MemoryMetadataStore,
) -> None:
    started = await start_copy(store, THIS, segment_meta(state=STARTED))
    copied = await finish_copy(store, THIS, started)
    compacted = dataclasses.replace(copied, compacted_up_to=7)
    await store.commit([records.put(compacted, is_logged=False)])
    (marked,) = await start_deletions(store, [copied], deletable_ms=3)
    assert (marked.state, marked.deletable_ms, marked.compacted_up_to) == (MARKED, 3, 7)


async def test_a_step_whose_outcome_is_not_known_is_found_out(store: MemoryMetadataStore) -> None:
    answers: list[Exception | None] = []
    store.on_commit = lambda _: answers.pop() if answers else None

    answers.append(OutcomeUnknown("lost"))
    started = await start_copy(store, THIS, segment_meta(state=STARTED))
    answers.append(OutcomeUnknown("lost"))
    copied = await finish_copy(store, THIS, started)
    answers.append(OutcomeUnknown("lost"))
    (marked,) = await start_deletions(store, [copied], deletable_ms=8)
    assert [marked] == await read_segments(store, THIS.topic_id, THIS.partition)
    assert (started.version, copied.version, marked.version) == (1, 2, 3)


async def test_a_given_up_copy_is_deleted_only_once_the_next_leader_has_removed_its_item(
    store: MemoryMetadataStore,
) -> None:
    objects = RecordingObjects()

    started = await start_copy(store, THIS, segment_meta(state=STARTED))
    keys = segment_keys("cluster-1", "t", started)
    assert not await delete_given_up_copy(store, objects, started, keys)
    marked = await start_deletions(store, [started], deletable_ms=AT_ONCE)
    assert not await delete_given_up_copy(store, objects, started, keys)
    assert objects.deleted == []
    await drop_segments(store, marked)
    assert await delete_given_up_copy(store, objects, started, keys)
    assert objects.deleted == [[keys.index], [keys.log]]


def test_only_finished_segments_wholly_below_the_log_start_go() -> None:
    whole, part = segment_meta(0, 10), segment_meta(10, 20)
    copying = segment_meta(0, 5, state=SegmentState.COPY_STARTED)
    deleting = segment_meta(0, 6, state=SegmentState.DELETE_STARTED)
    assert below_log_start([whole, part, copying, deleting], 15) == [whole]


def test_a_deletion_ends_at_its_time_and_one_without_time_at_once() -> None:
    def marked(ms: int) -> SegmentMeta:
        return segment_meta(state=SegmentState.DELETE_STARTED, deletable_ms=ms)

    before, due, later = marked(0), marked(100), marked(101)
    metas = [before, due, later, segment_meta(), segment_meta(state=SegmentState.COPY_STARTED)]
    assert select_deletable(metas, now_ms=100) == [before, due]
    assert next_deletable_ms([later, due, segment_meta()]) == 100
    assert next_deletable_ms([segment_meta()]) is None


def test_items_written_before_there_was_a_time_are_read_and_written_as_they_were() -> None:
    old = segment_meta(state=SegmentState.DELETE_STARTED)
    assert "deletable_ms" not in old.to_body()
    new = dataclasses.replace(old, deletable_ms=7)
    for segment in (old, new):
        item = Item(segment.item_id, 1, segment.to_body())
        assert SegmentMeta.from_item(item) == segment


async def test_of_two_deletions_the_first_ones_time_counts(tmp_path: Path) -> None:
    store = SqliteMetadataStore(tmp_path / "metadata.db")
    segments = [segment_meta(number, number + 1) for number in range(200)]
    for segment in segments:
        await store.commit([records.put(segment, is_logged=False)])
    seen = await read_segments(store, segments[0].topic_id, 3)
    started = await start_deletions(store, seen, deletable_ms=100)
    assert started == await read_segments(store, segments[0].topic_id, 3)
    assert [one.version for one in started] == [2] * 200
    assert await start_deletions(store, seen, deletable_ms=200) == started
    assert await start_deletions(store, started, deletable_ms=200) == started
    await drop_segments(store, started[50:])
    await drop_segments(store, started)  # some of them a second time
    assert await read_segments(store, segments[0].topic_id, 3) == []
    await drop_segments(store, started)
    await store.close()
