"""How a tiered segment goes: which, when, and the commits on the way.

    1. the partition's item: log start offset past the segment's end   no reader asks for it
       the bucket is told of the log start                             no restoration finds it
    2. COPY_FINISHED -> DELETE_STARTED, with the time it may go        no plan finds it
    3. file.delete.delay.ms later: both objects                        whoever held it is done
    4. the item

Leaders, functions and whoever else applies retention do these steps, in this order, each
from what the metadata says at that moment. They need not know of each other:

- The log start never goes back, so what 1 allowed stays allowed. The bucket is told by a key
  with the offset in it, and the greatest counts: who comes late takes nothing back.
- 2 therefore needs no more than the segment's own version. Of two who do it one loses, looks
  again, and finds it done; the time that the winner wrote is the one that counts.
- DELETE_STARTED never becomes anything else, its keys hold an id that is never used again,
  and deleting what is gone does nothing: 3 and 4 can be done twice, late, or by two at once.
- A copy under way is COPY_STARTED, which nobody but its leader and the next one touch, and
  is finished by a commit on the item's version and the leader's epoch. It is looked at by
  retention only once that has happened.
- A crash between two steps leaves what the next run finds: a log start that is past
  segments, or an item whose time has come.

The wait is between 2 and 3, and its end is in the item: it outlives whoever began it. It
is wall-clock time; writers' clocks are taken to agree within a few seconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from uuid import UUID

from tidelog_core.errors import VersionConflict
from tidelog_core.metadata import records
from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.metadata.store import (
    ALL_KEYS,
    COMMIT_WRITES_MAX,
    KeyRange,
    MetadataStore,
    Write,
)

AT_ONCE = 0  # as deletable_ms: nobody was ever pointed at the objects


def below_log_start(metas: Iterable[SegmentMeta], log_start_offset: int) -> list[SegmentMeta]:
    """Return the finished segments that hold nothing any more that may be read."""
    return [
        meta
        for meta in metas
        if meta.state is SegmentState.COPY_FINISHED and meta.end_offset <= log_start_offset
    ]


def select_deletable(metas: Iterable[SegmentMeta], *, now_ms: int) -> list[SegmentMeta]:
    """Return the segments whose deletion has begun and whose objects may go now."""
    return [
        meta
        for meta in metas
        if meta.state is SegmentState.DELETE_STARTED and meta.deletable_ms <= now_ms
    ]


def next_deletable_ms(metas: Iterable[SegmentMeta]) -> int | None:
    """Return when the first of the deletions that have begun may end, ``None`` for none."""
    started = (meta for meta in metas if meta.state is SegmentState.DELETE_STARTED)
    return min((meta.deletable_ms for meta in started), default=None)


def as_doomed(segment: SegmentMeta, *, deletable_ms: int) -> SegmentMeta:
    """Return the segment as its item says once its deletion has begun."""
    if segment.state is SegmentState.DELETE_STARTED:
        return segment
    return dataclasses.replace(
        segment, state=SegmentState.DELETE_STARTED, deletable_ms=deletable_ms
    )


async def read_segments(
    store: MetadataStore, topic_id: UUID, partition: int, *, keys: KeyRange = ALL_KEYS
) -> list[SegmentMeta]:
    """Return the partition's segments in any state, by base offset. Raises ``CorruptItem``."""
    items = await store.list(records.segment_collection(topic_id, partition), keys=keys)
    return [SegmentMeta.from_item(item) for item in items]


async def start_deletions(
    store: MetadataStore, segments: Sequence[SegmentMeta], *, deletable_ms: int
) -> list[SegmentMeta]:
    """Record that nobody is to read the segments any more; return them as they are stored.

    For segments below the log start, or of a topic that is gone. Those that are
    DELETE_STARTED already keep their time. Raises ``VersionConflict``,
    ``OutcomeUnknown``: some may be done; read again.
    """
    doomed = [
        as_doomed(segment, deletable_ms=deletable_ms)
        for segment in segments
        if segment.state is not SegmentState.DELETE_STARTED
    ]
    for some in _commits_of(doomed):
        await store.commit([records.put(segment, is_logged=False) for segment in some])
    before = [s for s in segments if s.state is SegmentState.DELETE_STARTED]
    return before + [dataclasses.replace(s, version=s.version + 1) for s in doomed]


async def drop_segments(store: MetadataStore, segments: Sequence[SegmentMeta]) -> None:
    """Forget segments whose objects are gone. Doing it twice is harmless."""
    for some in _commits_of(segments):
        assert all(segment.state is SegmentState.DELETE_STARTED for segment in some)
        try:
            await store.commit([records.delete(s, is_logged=False) for s in some])
        except VersionConflict:  # Someone else has dropped some of them.
            for segment in some:
                await _drop_one(store, segment)


async def _drop_one(store: MetadataStore, segment: SegmentMeta) -> None:
    item = await store.get(segment.item_id)
    if item is not None:
        await store.commit([Write(item.id, None, item.version, False)])


def _commits_of(segments: Sequence[SegmentMeta]) -> Iterable[Sequence[SegmentMeta]]:
    for at in range(0, len(segments), COMMIT_WRITES_MAX):
        yield segments[at : at + COMMIT_WRITES_MAX]
